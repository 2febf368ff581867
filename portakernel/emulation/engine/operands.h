// Vector operands: sources.cpp fetches them with their modifiers (neg, abs, op_sel, DPP, SDWA) for all lanes before one
// is written, results.cpp writes under EXEC with clamp and omod. A vector instruction is then a function over lanes.
#pragma once
#include "wave.h"

namespace emu {

// How a handler sees an operand. `mask` is a bit for each lane, in scalar registers; `f16`, `bf16` and `b16` are in the
// low half of u32; `pk` are two 16-bit values, whose op_sel and neg the packed handlers apply themselves by calling
// packed(); `raw` takes no modifier.
enum class Type : uint8_t {
  none, b16, f16, bf16, b32, f32, b64, f64, mask, pk_b16, pk_f16, pk_bf16, pk_f32, raw32, raw64, raw96, raw128, scalar32,
};

inline bool is_half(Type type) { return type == Type::b16 || type == Type::f16 || type == Type::bf16; }
inline bool is_packed(Type type) { return type == Type::pk_b16 || type == Type::pk_f16 || type == Type::pk_bf16; }
inline bool is_wide(Type type) {
  return type == Type::b64 || type == Type::f64 || type == Type::raw64 || type == Type::pk_f32;
}

union alignas(64) Lanes {
  uint32_t u32[MOST_LANES];
  int32_t i32[MOST_LANES];
  float f32[MOST_LANES];
  uint64_t u64[MOST_LANES];
  int64_t i64[MOST_LANES];
  double f64[MOST_LANES];
};

// What a handler computes with.
struct Alu {
  Wave* wave;
  const Op* op;
  int n;               // lanes
  uint64_t active;     // lanes that are written
  uint64_t left;       // lanes that DPP has no source for, and so leaves as they are
  uint64_t mask[3];    // sources of Type::mask
  uint64_t out_mask;   // the result of a compare or carry
  uint64_t mask_known;
  uint64_t source_known[3];
  uint64_t known;      // lanes whose sources were all written by somebody
  uint64_t known_low;  // 64-bit results: the same of the low word, where `low_differs`
  bool low_differs;
  Lanes in[3];
  Lanes out;
  // f16 sources as floats
  float half(int source, int lane) const { return from_half(in[source].u32[lane]); }
};

enum VectorFlag : uint8_t {
  WRITES_MASK = 1,      // out_mask goes to sdst (VOP3SD: beside dst), to dst where dst is a mask
  WRITES_EXEC = 2,      // v_cmpx
  KEEPS_HIGH = 4,       // 16-bit results that leave the other half on CDNA too
  IGNORES_EXEC = 8,
  OWN_WRITE = 16,       // run() writes registers itself, and tells what is known
  SELECTS = 32,         // what it does not select may be unwritten: it tells `known` itself
};

struct VectorOp {
  const char* name;
  Type dst;
  Type src[3];
  void (*run)(Alu&);
  uint8_t flags = 0;
};

void execute_vector(Wave& wave, const Op& op, const VectorOp& vector);
void execute_dual(Wave& wave, const Op& x, const VectorOp& vx, const Op& y, const VectorOp& vy);

// Which register and half an operand of 16 bits is in.
struct RegisterHalf { unsigned code; bool high; };
RegisterHalf register_half(const Wave& wave, const Op& op, unsigned code, unsigned select);
// Fetches source `source` and returns the lanes whose value somebody wrote; DPP takes lanes away from `active`.
uint64_t fetch(Wave& wave, const Op& op, Type type, int source, Alu& alu);
// A source's raw bits without modifiers: `words` registers of each lane into `to`, by word.
void fetch_raw(Wave& wave, const Op& op, unsigned code, Type type, Lanes& to);
uint64_t lanes_known(Wave& wave, unsigned code, unsigned words, unsigned halves = BOTH_HALVES);
void write_lanes(Wave& wave, unsigned code, const uint32_t* values, uint64_t lanes, uint64_t known);
// The lane that DPP reads for `lane`, or -1 where it has none.
int dpp_source(const Op& op, int lane, int lanes);

inline float flush(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}

// Short definitions: `a`, `b`, `c` are the sources in this lane.
#define EMU_LANES for (int l = 0; l < s.n; ++l)
#define F32_1(name, expr) {name, Type::f32, {Type::f32}, [](Alu& s) { EMU_LANES { const float a = s.in[0].f32[l]; s.out.f32[l] = (expr); } }}
#define F32_2(name, expr) {name, Type::f32, {Type::f32, Type::f32}, [](Alu& s) { EMU_LANES { const float a = s.in[0].f32[l], b = s.in[1].f32[l]; s.out.f32[l] = (expr); } }}
#define F32_3(name, expr) {name, Type::f32, {Type::f32, Type::f32, Type::f32}, [](Alu& s) { EMU_LANES { const float a = s.in[0].f32[l], b = s.in[1].f32[l], c = s.in[2].f32[l]; s.out.f32[l] = (expr); } }}
#define U32_1(name, expr) {name, Type::b32, {Type::b32}, [](Alu& s) { EMU_LANES { const uint32_t a = s.in[0].u32[l]; s.out.u32[l] = (expr); } }}
#define U32_2(name, expr) {name, Type::b32, {Type::b32, Type::b32}, [](Alu& s) { EMU_LANES { const uint32_t a = s.in[0].u32[l], b = s.in[1].u32[l]; s.out.u32[l] = (expr); } }}
#define U32_3(name, expr) {name, Type::b32, {Type::b32, Type::b32, Type::b32}, [](Alu& s) { EMU_LANES { const uint32_t a = s.in[0].u32[l], b = s.in[1].u32[l], c = s.in[2].u32[l]; s.out.u32[l] = (expr); } }}
#define I32_2(name, expr) {name, Type::b32, {Type::b32, Type::b32}, [](Alu& s) { EMU_LANES { const int32_t a = s.in[0].i32[l], b = s.in[1].i32[l]; s.out.u32[l] = static_cast<uint32_t>(expr); } }}
#define I32_3(name, expr) {name, Type::b32, {Type::b32, Type::b32, Type::b32}, [](Alu& s) { EMU_LANES { const int32_t a = s.in[0].i32[l], b = s.in[1].i32[l], c = s.in[2].i32[l]; s.out.u32[l] = static_cast<uint32_t>(expr); } }}
#define F64_1(name, expr) {name, Type::f64, {Type::f64}, [](Alu& s) { EMU_LANES { const double a = s.in[0].f64[l]; s.out.f64[l] = (expr); } }}
#define F64_2(name, expr) {name, Type::f64, {Type::f64, Type::f64}, [](Alu& s) { EMU_LANES { const double a = s.in[0].f64[l], b = s.in[1].f64[l]; s.out.f64[l] = (expr); } }}
#define F64_3(name, expr) {name, Type::f64, {Type::f64, Type::f64, Type::f64}, [](Alu& s) { EMU_LANES { const double a = s.in[0].f64[l], b = s.in[1].f64[l], c = s.in[2].f64[l]; s.out.f64[l] = (expr); } }}
// float16: computed in double and rounded once by MODE
#define F16_1(name, expr) {name, Type::f16, {Type::f16}, [](Alu& s) { EMU_LANES { const double a = s.half(0, l); s.out.u32[l] = to_half((expr), s.wave->round16_64()); } }}
#define F16_2(name, expr) {name, Type::f16, {Type::f16, Type::f16}, [](Alu& s) { EMU_LANES { const double a = s.half(0, l), b = s.half(1, l); s.out.u32[l] = to_half((expr), s.wave->round16_64()); } }}
#define F16_3(name, expr) {name, Type::f16, {Type::f16, Type::f16, Type::f16}, [](Alu& s) { EMU_LANES { const double a = s.half(0, l), b = s.half(1, l), c = s.half(2, l); s.out.u32[l] = to_half((expr), s.wave->round16_64()); } }}

}  // namespace emu
