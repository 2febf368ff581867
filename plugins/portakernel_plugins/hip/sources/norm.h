// Normalised rows: what rms_norm, layer_norm and add_rms_norm have in common.
//
// Of each row, with s = x + residual rounded to its dtype, or s = x where nothing is added:
//
//     mean = mean(s), or 0 where the norm does not centre
//     rstd = 1 / sqrt(mean((s - mean)**2) + eps)
//     y    = (s - mean) * rstd * (weight + weight_offset) + bias
//
// A row is RowThreads threads': thread t owns packs t, t + RowThreads, ... of neighbouring elements, and reads and
// writes no others, so that y may be x, and summed residual. All is computed in float32 and rounded once.
#pragma once

#include "numbers.h"
#include "reduction.h"

template <typename T, typename W> struct NormRows {
    const T* x;
    const T* residual;  // where Added
    const W* weight;
    const W* bias;      // null: nothing is added
    T* y;
    T* summed;          // where Added
    float* mean;        // null: not wanted
    float* rstd;        // null: not wanted
    int64 rows, columns;
    int64 x_stride, residual_stride, y_stride, summed_stride;
    float eps, weight_offset;

    static constexpr int COUNT = ELEMENTS<T>;

    DEVICE float reciprocal_root(float squares) const {
        return 1.0f / square_root(squares / static_cast<float>(columns) + eps);
    }

    // y's pack of these elements of s.
    template <bool Whole, bool Centred>
    DEVICE Pack<T, COUNT> normalised(
        const Pack<T, COUNT>& s, const Pack<W, COUNT>& weights, float m, float r, int column, int64 left) const {
        float numbers[COUNT];
        unpack(s, numbers);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const float deviation = Centred ? numbers[i] - m : numbers[i];
            numbers[i] = deviation * r * (element(weights, i) + weight_offset);
        }
        if (bias != nullptr) {
            const Pack<W, COUNT> shift = load<Whole, COUNT>(bias + column, left);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) numbers[i] += element(shift, i);
        }
        return pack<T>(numbers);
    }

    DEVICE static Pack<T, COUNT> sum(const Pack<T, COUNT>& a, const Pack<T, COUNT>& b) {
        float numbers[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) numbers[i] = element(a, i) + element(b, i);
        return pack<T>(numbers);
    }

    // The squares of a pack's first `left` elements, less m where Centred; beyond them s is zero, its deviation is not.
    template <bool Centred> DEVICE static float squares(const Pack<T, COUNT>& s, float m, int left) {
        float numbers[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const float deviation = Centred ? (i < left ? element(s, i) - m : 0.0f) : element(s, i);
            numbers[i] = deviation * deviation;
        }
        return pairwise_sum(numbers);
    }

    template <bool Centred> DEVICE void keep(int64 row, int lane, float m, float r) const {
        if (lane != 0 || row >= rows) return;
        if (rstd != nullptr) rstd[row] = r;
        if (Centred && mean != nullptr) mean[row] = m;
    }

    // Rows that stay in registers, Packs packs a thread; several to a block where RowThreads is less than Threads.
    template <int Threads, int RowThreads, int Packs, bool Whole, bool Added, bool Centred> DEVICE void held() const {
        static_assert(RowThreads == Threads || RowThreads <= WARP_SIZE, "a row is within a warp, or the block's");
        // Read early, weights come beside the row, if there are registers for them: a centred norm has two sums, and a
        // large block's threads have 64 each.
        constexpr int HELD_WORDS = Packs * (Pack<T, COUNT>::WORDS * (Added ? 2 : 1) + Pack<W, COUNT>::WORDS);
        constexpr bool EARLY = !Centred && Packs * Pack<W, COUNT>::WORDS <= 32 && HELD_WORDS * Threads <= 32768;
        const int lane = thread_number() % RowThreads;
        const int64 row = block_number() * (Threads / RowThreads) + thread_number() / RowThreads;
        const int width = row < rows ? static_cast<int>(columns) : 0;

        Held<Pack<T, COUNT>, Packs> s;
        Held<Pack<W, COUNT>, Packs> weights;
#pragma unroll
        for (int p = 0; p < Packs; ++p) {
            const int column = (p * RowThreads + lane) * COUNT;
            s[p] = load<Whole, COUNT>(x + row * x_stride + column, width - column);
        }
        if constexpr (Added) {
            Held<Pack<T, COUNT>, Packs> added;
#pragma unroll
            for (int p = 0; p < Packs; ++p) {
                const int column = (p * RowThreads + lane) * COUNT;
                added[p] = load<Whole, COUNT>(residual + row * residual_stride + column, width - column);
            }
#pragma unroll
            for (int p = 0; p < Packs; ++p) {
                const int column = (p * RowThreads + lane) * COUNT;
                s[p] = sum(s[p], added[p]);
                store<Whole>(summed + row * summed_stride + column, width - column, s[p]);
            }
        }
        if constexpr (EARLY) {
#pragma unroll
            for (int p = 0; p < Packs; ++p) {
                const int column = (p * RowThreads + lane) * COUNT;
                weights[p] = load<Whole, COUNT>(weight + column, width - column);
            }
        }

        float m = 0.0f;
        if constexpr (Centred) {
            float total = 0.0f;
#pragma unroll
            for (int p = 0; p < Packs; ++p) {
                float numbers[COUNT];
                unpack(s[p], numbers);
                total += pairwise_sum(numbers);
            }
            m = over_row<RowThreads, 0>(total, Add()) / static_cast<float>(columns);
        }
        float total = 0.0f;
#pragma unroll
        for (int p = 0; p < Packs; ++p) {
            forget(s[p].words);
            const int left = width - (p * RowThreads + lane) * COUNT;
            total += squares<Centred>(s[p], m, existing<Whole, COUNT>(left));
        }
        const float r = reciprocal_root(over_row<RowThreads, 1>(total, Add()));

#pragma unroll
        for (int p = 0; p < Packs; ++p) {
            const int column = (p * RowThreads + lane) * COUNT, left = width - column;
            if constexpr (!EARLY) weights[p] = load<Whole, COUNT>(weight + column, left);
            forget(s[p].words);
            const Pack<T, COUNT> found = normalised<Whole, Centred>(s[p], weights[p], m, r, column, left);
            store<Whole>(y + row * y_stride + column, left, found);
        }
        keep<Centred>(row, lane, m, r);
    }

    // A longer row is one block's, read again for each sum and for the result; summed is what is read again.
    template <int Threads, bool Whole, bool Added, bool Centred> DEVICE void streamed() const {
        const int lane = thread_number();
        const int64 row = block_number();
        const int width = row < rows ? static_cast<int>(columns) : 0;
        const T* const s = Added ? summed + row * summed_stride : x + row * x_stride;

        LongSum sums, deviations;
        for (int column = lane * COUNT; column < width; column += Threads * COUNT) {
            Pack<T, COUNT> found = load<Whole, COUNT>(x + row * x_stride + column, width - column);
            if constexpr (Added) {
                found = sum(found, load<Whole, COUNT>(residual + row * residual_stride + column, width - column));
                store<Whole>(summed + row * summed_stride + column, width - column, found);
            }
            if constexpr (Centred) {
                float numbers[COUNT];
                unpack(found, numbers);
                sums.add(pairwise_sum(numbers));
            } else {
                deviations.add(squares<false>(found, 0.0f, COUNT));
            }
        }
        float m = 0.0f;
        if constexpr (Centred) {
            m = over_row<Threads, 0>(sums.total, Add()) / static_cast<float>(columns);
            for (int column = lane * COUNT; column < width; column += Threads * COUNT) {
                const int left = width - column;
                deviations.add(squares<true>(load<Whole, COUNT>(s + column, left), m, existing<Whole, COUNT>(left)));
            }
        }
        const float r = reciprocal_root(over_row<Threads, 1>(deviations.total, Add()));

        // From the end, because its end is what caches still hold.
        const int step = Threads * COUNT;
        for (int column = (width - 1) / step * step + lane * COUNT; column >= 0; column -= step) {
            const int left = width - column;
            const Pack<W, COUNT> weights = load<Whole, COUNT>(weight + column, left);
            const Pack<T, COUNT> found = load<Whole, COUNT>(s + column, left);
            const Pack<T, COUNT> given = normalised<Whole, Centred>(found, weights, m, r, column, left);
            store<Whole>(y + row * y_stride + column, left, given);
        }
        keep<Centred>(row, lane, m, r);
    }
};
