// The table of instructions: every family registers its handlers by the name that the ISA documents give them, in lower
// case, without the _e32 and _e64 of encodings.
#pragma once
#include <string>

#include "operands.h"
#include "wave.h"

namespace emu {

enum class Family : uint32_t {
  unknown, scalar, control, scalar_memory, vector, lanes, memory, buffer, lds, atomic, matrix, wait,
};

using Run = void (*)(Wave&, const Op&);

struct Handler {
  std::string name;
  Family family;
  Run run;                      // scalar, memory, control: does it all
  int32_t param;                // what `run` finds in wave.param
  const VectorOp* vector;       // vector ALU: what results.cpp calls between fetch and write
};

// Each file's own list; added in registry.cpp, where a new file is named once.
void add(const std::string& name, Family family, Run run, int32_t param = 0);
void add_vector(const VectorOp* ops, size_t count, Family family = Family::vector);

const std::vector<Handler>& handlers();
int find(const char* name);

// The files.
void register_scalar();
void register_scalar_mask();
void register_scalar_float();
void register_scalar_half();
void register_control();
void register_waits();
void register_scalar_memory();
void register_vector_float();
void register_vector_integer();
void register_vector_integer16();
void register_vector_half();
void register_vector_double();
void register_vector_compare();
void register_vector_convert();
void register_vector_small_float();
void register_vector_scaled();
void register_vector_special();
void register_vector_packed();
void register_vector_dot();
void register_lanes();
void register_memory();
void register_buffer();
void register_lds();
void register_lds_atomic();
void register_lds_transposed();
void register_memory_atomic();
void register_matrix();
void register_matrix_wmma();

template <size_t N>
void add_vectors(const VectorOp (&ops)[N], Family family = Family::vector) { add_vector(ops, N, family); }

}  // namespace emu
