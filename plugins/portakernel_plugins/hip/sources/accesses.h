// What a GPU does not forgive and a CPU does: an address that is no multiple of what is accessed there, and an index
// behind an array. The program ends with the place, as at a barrier that threads disagree on.
//
// With -fsanitize=alignment,bounds g++ and clang++ check both, and call functions of these names and parameters. Ours
// need no library of theirs, which many machines lack.
#pragma once

namespace emulator {

struct Line { const char* file; unsigned number, column; };
struct Type { unsigned short kind, info; char name[1]; };
struct Misaligned { Line line; const Type* type; unsigned char log2_alignment, access; };
struct Outside { Line line; const Type *array, *index; };

inline void name_thread(const char* file, unsigned line) {
    const long long block = here_y * GRID_WIDTH + here_x;
    dprintf(2, "%s:%u: %s, block %lld, thread %u: ", file, line, SOURCE, block, current);
}

// An index, and the line that it stands in.
struct Index {
    int number;
    const char* file;
    unsigned line;
    Index(int number, const char* file = __builtin_FILE(), unsigned line = __builtin_LINE())
        : number(number), file(file), line(line) {}
};

}  // namespace emulator

// Compilers let a reference to what follows an array's last element pass, as packs are given to functions.
template <typename Value, int COUNT> struct Held {
    Value values[COUNT];

    Value& operator[](emulator::Index i) {
        if (i.number < 0 || i.number >= COUNT) {
            emulator::name_thread(i.file, i.line);
            dprintf(2, "index %d of the %d packs that a thread holds: it would be another variable\n", i.number, COUNT);
            __builtin_abort();
        }
        return values[i.number];
    }
};

extern "C" {

void __ubsan_handle_type_mismatch_v1_abort(const emulator::Misaligned* found, unsigned long address) {
    const unsigned long wanted = 1ul << found->log2_alignment;
    emulator::name_thread(found->line.file, found->line.number);
    dprintf(2, "accesses %s at an address that is %lu more than a multiple of %lu: a GPU needs a multiple; see are_whole()\n",
            found->type->name, address % wanted, wanted);
    __builtin_abort();
}

void __ubsan_handle_out_of_bounds_abort(const emulator::Outside* found, unsigned long index) {
    const unsigned unused = 8 * sizeof(index) - (1u << (found->index->info >> 1));  // bits; the lowest says: signed
    const long long number = found->index->info & 1 ? (long long)(index << unused) >> unused : (long long)(index);
    emulator::name_thread(found->line.file, found->line.number);
    dprintf(2, "index %lld of %s: it would be another variable\n", number, found->array->name);
    __builtin_abort();
}

}
