// A block on a CPU: its threads are fibers, of which each runs until the next barrier, one after the other. It serves
// to compare numbers where there is no GPU; its speed is that of a CPU's one core.
//
// An exchange between lanes is a barrier too. Where threads of a block disagree on barriers the program ends: on a GPU
// it would hang, or read what is not there yet.
#pragma once

// This one alone: C's other headers are C++'s too there, and take a compiler as long as the kernel.
#include <ucontext.h>

#define __global__
#define __device__
#define __shared__ static
#define BLOCK_OF(threads)

constexpr int WARP_SIZE = EMULATED;

// Copied by functions of their own, whose arguments' addresses clang++ checks (accesses.h); those of copies that it
// makes itself it does not.
struct alignas(16) Words4 {
    unsigned x, y, z, w;

    Words4(unsigned x, unsigned y, unsigned z, unsigned w) : x(x), y(y), z(z), w(w) {}
    Words4(const Words4& from) : x(from.x), y(from.y), z(from.z), w(from.w) {}
    void operator=(const Words4& from) { x = from.x, y = from.y, z = from.z, w = from.w; }
};
struct alignas(8) Words2 {
    unsigned x, y;

    Words2(unsigned x, unsigned y) : x(x), y(y) {}
    Words2(const Words2& from) : x(from.x), y(from.y) {}
    void operator=(const Words2& from) { x = from.x, y = from.y; }
};

extern "C" int dprintf(int descriptor, const char* format, ...);

namespace emulator {

constexpr unsigned MOST_THREADS = 1024;
constexpr unsigned STACK_BYTES = 64 << 10;

inline ucontext_t scheduler, fibers[MOST_THREADS];
inline bool ended[MOST_THREADS];
inline unsigned current, together, here_x, here_y, slots[MOST_THREADS];
inline char stacks[MOST_THREADS][STACK_BYTES];
inline void (*body)();

inline void barrier() {
    if (together != 1) swapcontext(&fibers[current], &scheduler);
}

inline void begin() {
    body();
    ended[current] = true;
    swapcontext(&fibers[current], &scheduler);
}

inline void run_block(unsigned threads) {
    together = threads;
    if (threads == 1) {  // no fiber: it takes longer than the kernel, of which a grid has a million then
        current = 0;
        body();
        return;
    }
    for (unsigned thread = 0; thread < threads; ++thread) {
        ended[thread] = false;
        getcontext(&fibers[thread]);
        fibers[thread].uc_stack.ss_sp = stacks[thread];
        fibers[thread].uc_stack.ss_size = STACK_BYTES;
        makecontext(&fibers[thread], begin, 0);
    }
    for (unsigned running = threads; running != 0;) {
        for (current = 0; current < threads; ++current) swapcontext(&scheduler, &fibers[current]);
        running = 0;
        for (unsigned thread = 0; thread < threads; ++thread) running += !ended[thread];
        if (running != 0 && running != threads) {
            dprintf(2, "%u of a block's %u threads wait at a barrier that the others never reach\n", running, threads);
            __builtin_abort();
        }
    }
}

// The numbers 0 to COUNT - 1.
template <unsigned... PLACES> struct Places {};
template <unsigned COUNT, unsigned... PLACES> struct PlacesTo : PlacesTo<COUNT - 1, COUNT - 1, PLACES...> {};
template <unsigned... PLACES> struct PlacesTo<0, PLACES...> {
    typedef Places<PLACES...> Type;
};

template <typename... Arguments, unsigned... PLACES>
void run(void (*kernel)(Arguments...), unsigned width, unsigned height, unsigned threads, void** arguments,
         Places<PLACES...>) {
    static void (*called)(Arguments...);
    static void** given;
    called = kernel, given = arguments;
    body = [] { called(*static_cast<Arguments*>(given[PLACES])...); };
    for (here_y = 0; here_y < height; ++here_y) {
        for (here_x = 0; here_x < width; ++here_x) run_block(threads);
    }
}

template <typename... Arguments>
void run(void (*kernel)(Arguments...), unsigned width, unsigned height, unsigned threads, void** arguments) {
    run(kernel, width, height, threads, arguments, typename PlacesTo<sizeof...(Arguments)>::Type());
}

}  // namespace emulator

inline unsigned thread_number() { return emulator::current; }
inline unsigned block_x() { return emulator::here_x; }
inline unsigned block_y() { return emulator::here_y; }
inline void synchronize_block() { emulator::barrier(); }

template <int MASK> inline unsigned exchanged_bits(unsigned x) {
    static_assert(MASK < WARP_SIZE, "lanes of one warp");
    emulator::slots[thread_number()] = x;
    emulator::barrier();
    const unsigned found = emulator::slots[thread_number() ^ MASK];
    emulator::barrier();
    return found;
}

inline void opaque(unsigned& word) { asm volatile("" : "+r"(word)); }

inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float maximum(float a, float b) { return __builtin_fmaxf(a, b); }
inline float square_root(float x) { return __builtin_sqrtf(x); }
inline float power_of_two(float x) { return __builtin_exp2f(x); }
inline float reciprocal(float x) { return 1.0f / x; }

inline unsigned emulated_bits(float x) { return __builtin_bit_cast(unsigned, x); }
inline float emulated_float(unsigned bits) { return __builtin_bit_cast(float, bits); }

inline float from_float16(unsigned bits) {
    const unsigned size = bits & 0x7FFF, sign = (bits & 0x8000) << 16;
    if (size >= 0x7C00) return emulated_float(sign | 0x7F800000 | (size & 0x3FF) << 13);
    // The exponents' biases differ by 112; a product brings subnormal numbers along.
    return emulated_float(sign | emulated_bits(emulated_float(size << 13) * 0x1p112f));
}
inline unsigned to_float16(float x) {
    const unsigned size = emulated_bits(x) & 0x7FFFFFFF, sign = emulated_bits(x) >> 16 & 0x8000;
    if (size > 0x7F800000) return sign | 0x7E00;
    if (size >= 0x477FF000) return sign | 0x7C00;  // 65520 and beyond round to infinity
    // Below 2**-14 the sum's last bit is worth what that of float16's subnormal numbers is: the addition rounds.
    if (size < 0x38800000) return sign | (emulated_bits(emulated_float(size) + 0.5f) - 0x3F000000);
    return sign | ((size + 0xFFF + (size >> 13 & 1)) >> 13) - (112 << 10);
}
inline unsigned to_bfloat16(float x) {
    const unsigned bits = emulated_bits(x);
    return (bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
inline unsigned to_float16_pair(float low, float high) { return to_float16(low) | to_float16(high) << 16; }
inline unsigned to_bfloat16_pair(float low, float high) { return to_bfloat16(low) | to_bfloat16(high) << 16; }
