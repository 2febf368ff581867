#include <cfenv>

#include "operands.h"

namespace emu {

namespace {

void finish32(Wave& wave, const Op& op, float* out, int n) {
  static const float FACTOR[] = {1.0f, 2.0f, 4.0f, 0.5f};
  if (op.omod) for (int l = 0; l < n; ++l) out[l] *= FACTOR[op.omod];
  if (!wave.keeps_output32()) for (int l = 0; l < n; ++l) out[l] = flush(out[l]);
  if (op.clamp) for (int l = 0; l < n; ++l) out[l] = out[l] > 0.0f ? std::min(out[l], 1.0f) : 0.0f;
}

void finish_other(Wave& wave, const Op& op, Type type, Lanes& out, int n) {
  static const double FACTOR[] = {1.0, 2.0, 4.0, 0.5};
  if (type == Type::f64) {
    if (op.omod) for (int l = 0; l < n; ++l) out.f64[l] *= FACTOR[op.omod];
    if (!wave.keeps_output16_64()) for (int l = 0; l < n; ++l) if (!(out.u64[l] >> 52 & 0x7ff)) out.u64[l] &= 1ull << 63;
    if (op.clamp) for (int l = 0; l < n; ++l) out.f64[l] = out.f64[l] > 0 ? std::min(out.f64[l], 1.0) : 0.0;
  } else if (type == Type::f16) {
    if (op.omod) for (int l = 0; l < n; ++l) out.u32[l] = to_half(from_half(out.u32[l]) * FACTOR[op.omod]);
    if (!wave.keeps_output16_64()) for (int l = 0; l < n; ++l) if (!(out.u32[l] & 0x7c00)) out.u32[l] &= 0x8000;
    if (op.clamp)
      for (int l = 0; l < n; ++l) {
        float v = from_half(out.u32[l]);
        out.u32[l] = to_half(v > 0 ? std::min(v, 1.0f) : 0.0f);
      }
  }
}

void mark_written(Wave& wave, unsigned code, uint64_t lanes, uint64_t known, unsigned halves = BOTH_HALVES) {
  // loads into it are in order with others of their counter: issue() looks at the rest
  if (wave.waits.outstanding && !wave.launch->ops[wave.pc].counters) need_waited(wave, code, 1, halves);
  uint64_t& mark = wave.vector_known(code);
  mark = (mark & ~lanes) | (known & lanes);
  if (lanes & ~known & wave.exec()) wave.origin(code) = wave.inherited_origin();
  else if (wave.unsure) wave.origin(code) = wave.origin(EXEC);
  mark &= ~wave.unsure;
}

void write_half(Wave& wave, const Op& op, const VectorOp& vector, Alu& alu) {
  RegisterHalf half = register_half(wave, op, op.dst, 3);
  Register& to = wave.vector(half.code);
  bool zero_high = !wave.rdna() && !(vector.flags & KEEPS_HIGH) && !half.high;
  for (int l = 0; l < alu.n; ++l) {
    if (!(alu.active >> l & 1)) continue;
    uint32_t value = alu.out.u32[l] & 0xffff, old = to.lane[l];
    to.lane[l] = half.high ? (old & 0xffff) | value << 16 : (zero_high ? 0 : old & 0xffff0000) | value;
  }
  mark_written(wave, half.code, alu.active, alu.known, half.high ? HIGH_HALF : LOW_HALF);
}

void write_sdwa(Wave& wave, const Op& op, Alu& alu) {
  Register& to = wave.vector(op.dst);
  unsigned select = op.dst_sel, bits = select < 4 ? 8 : 16, shift = select < 4 ? select * 8 : (select - 4) * 16;
  uint32_t field = ((1u << bits) - 1) << shift;
  for (int l = 0; l < alu.n; ++l) {
    if (!(alu.active >> l & 1)) continue;
    uint32_t value = (alu.out.u32[l] << shift) & field;
    if (op.dst_unused == 2) value |= to.lane[l] & ~field;
    if (op.dst_unused == 1 && value >> (shift + bits - 1) & 1)
      for (unsigned b = shift + bits; b < 32; ++b) value |= 1u << b;
    to.lane[l] = value;
  }
  mark_written(wave, op.dst, alu.active, alu.known);
}

const int HOST_ROUNDING[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};

void compute(Wave& wave, const Op& op, const VectorOp& vector, Alu& alu) {
  alu.wave = &wave;
  alu.op = &op;
  alu.n = wave.lanes;
  alu.active = vector.flags & IGNORES_EXEC ? wave.all : wave.exec();
  alu.known = wave.all;
  alu.left = 0;
  alu.out_mask = 0;
  for (int i = 0; i < 3 && vector.src[i] != Type::none; ++i)
    alu.known &= alu.source_known[i] = fetch(wave, op, vector.src[i], i, alu);
  alu.mask_known = alu.known;
  alu.low_differs = false;
  unsigned rounding = vector.dst == Type::f32 || vector.dst == Type::pk_f32 ? wave.round32()
                      : vector.dst == Type::f64 || vector.dst == Type::f16 || vector.src[0] == Type::pk_f16 ? wave.round16_64()
                                                                                                         : 0;
  if (rounding) std::fesetround(HOST_ROUNDING[rounding]);
  vector.run(alu);
  if (vector.dst == Type::f32) finish32(wave, op, alu.out.f32, alu.n);
  else if (vector.dst == Type::f64 || vector.dst == Type::f16) finish_other(wave, op, vector.dst, alu.out, alu.n);
  if (rounding) std::fesetround(FE_TONEAREST);
}

// What is not written of a lane mask is zero.
void write_mask(Wave& wave, unsigned code, const Alu& alu) {
  bool known = !(alu.active & ~alu.mask_known);
  if (wave.unsure || (!known && !wave.raced_loads.empty() && comes_from_a_race(wave)))
    set_compared(wave, code, alu.out_mask, alu.active, alu.mask_known);
  else
    wave.set_mask(code, alu.out_mask & alu.active, known);
}

void write(Wave& wave, const Op& op, const VectorOp& vector, Alu& alu) {
  if (vector.flags & (WRITES_MASK | WRITES_EXEC)) {
    if (vector.flags & WRITES_EXEC) {
      if (!wave.rdna()) write_mask(wave, op.dst, alu);
      write_mask(wave, EXEC, alu);
    } else {
      write_mask(wave, vector.dst == Type::mask ? op.dst : op.sdst, alu);
    }
  }
  if (vector.flags & OWN_WRITE) return;
  switch (vector.dst) {
    case Type::none: case Type::mask: return;
    case Type::b16: case Type::f16: case Type::bf16:
      if (op.permute != Permute::sdwa) return write_half(wave, op, vector, alu);
      break;
    case Type::b64: case Type::f64: case Type::raw64: case Type::pk_f32: {
      uint32_t low[MOST_LANES], high[MOST_LANES];
      for (int l = 0; l < alu.n; ++l) {
        low[l] = static_cast<uint32_t>(alu.out.u64[l]);
        high[l] = static_cast<uint32_t>(alu.out.u64[l] >> 32);
      }
      write_lanes(wave, op.dst, low, alu.active, alu.low_differs ? alu.known_low : alu.known);
      write_lanes(wave, op.dst + 1, high, alu.active, alu.known);
      return;
    }
    default: break;
  }
  if (op.permute == Permute::sdwa && op.dst_sel == 7) return refuse(wave);  // no field has that number
  if (op.permute == Permute::sdwa && op.dst_sel != 6) return write_sdwa(wave, op, alu);
  write_lanes(wave, op.dst, alu.out.u32, alu.active, alu.known);
}

}  // namespace

void write_lanes(Wave& wave, unsigned code, const uint32_t* values, uint64_t lanes, uint64_t known) {
  if (code < VGPR) return;
  Register& to = wave.vector(code);
  mark_written(wave, code, lanes, known);
  if (lanes == wave.all) {
    memcpy(to.lane, values, sizeof(uint32_t) * wave.lanes);
    return;
  }
  for (unsigned l = 0; l < wave.lanes; ++l)
    if (lanes >> l & 1) to.lane[l] = values[l];
}

void execute_vector(Wave& wave, const Op& op, const VectorOp& vector) {
  Alu alu;
  compute(wave, op, vector, alu);
  write(wave, op, vector, alu);
  // a lane that DPP has no source for stays as it was: undefined, where nobody wrote it before
  if (alu.left & wave.exec() && op.dst >= VGPR && op.dst != NO_OPERAND && alu.left & wave.exec() & ~wave.vector_known(op.dst))
    wave.origin(op.dst) = wave.pc;
}

void execute_dual(Wave& wave, const Op& x, const VectorOp& vx, const Op& y, const VectorOp& vy) {
  Alu first, second;  // both read before either writes
  compute(wave, x, vx, first);
  compute(wave, y, vy, second);
  write(wave, x, vx, first);
  write(wave, y, vy, second);
}

}  // namespace emu
