#include "operands.h"

namespace emu {

namespace {

const float CONSTANTS[] = {0.5f, -0.5f, 1.0f, -1.0f, 2.0f, -2.0f, 4.0f, -4.0f};

uint32_t inline_integer(unsigned code) {
  return code <= 192 ? code - 128 : static_cast<uint32_t>(192 - static_cast<int>(code));
}

uint32_t inline_float(unsigned code, Type type) {
  if (is_half(type) || is_packed(type)) {
    if (type == Type::bf16 || type == Type::pk_bf16)
      return code == 248 ? 0x3e22 : bits_of(CONSTANTS[code - 240]) >> 16;
    return code == 248 ? 0x3118 : to_half(CONSTANTS[code - 240]);
  }
  return code == 248 ? 0x3e22f983 : bits_of(CONSTANTS[code - 240]);
}

uint32_t special(const Wave& wave, unsigned code) {
  switch (code) {
    case SHARED_BASE: return SHARED_APERTURE >> 32;
    case SHARED_LIMIT: return SHARED_APERTURE >> 32;
    case PRIVATE_BASE: return PRIVATE_APERTURE >> 32;
    case PRIVATE_LIMIT: return PRIVATE_APERTURE >> 32;
    case VCCZ: return wave.mask(VCC) == 0;
    case EXECZ: return wave.exec() == 0;
    case SCC: return wave.scc;
    default: return 0;
  }
}

uint32_t constant32(const Wave& wave, const Op& op, unsigned code, Type type) {
  if (code == LITERAL) return op.literal;
  if (code >= 128 && code <= 208) return inline_integer(code);
  if (code >= 240 && code <= 248) return inline_float(code, type);
  return special(wave, code);
}

uint64_t constant64(const Wave& wave, const Op& op, unsigned code, Type type) {
  if (code == LITERAL)
    return type == Type::f64 ? uint64_t{op.literal} << 32
                             : type == Type::pk_f32 ? op.literal : static_cast<uint64_t>(op.literal);
  if (code >= 128 && code <= 208)
    return static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(inline_integer(code))));
  if (code >= 240 && code <= 248) {
    if (type == Type::pk_f32) return inline_float(code, Type::f32) * 0x100000001ull;
    return code == 248 ? 0x3fc45f306dc9c882ull : bits_of(static_cast<double>(CONSTANTS[code - 240]));
  }
  if (code >= SHARED_BASE && code <= PRIVATE_LIMIT) return uint64_t{special(wave, code)} << 32;
  return special(wave, code);
}

unsigned words_of(Type type) {
  return is_wide(type) ? 2 : type == Type::raw96 ? 3 : type == Type::raw128 ? 4 : 1;
}

uint32_t select_sdwa(uint32_t value, unsigned select, bool sext) {
  unsigned bits = select < 4 ? 8 : select < 6 ? 16 : 32, shift = select < 4 ? select * 8 : select < 6 ? (select - 4) * 16 : 0;
  value >>= shift;
  if (bits == 32) return value;
  value &= (1u << bits) - 1;
  return sext && value >> (bits - 1) ? value | ~((1u << bits) - 1) : value;
}

void modify(Wave& wave, const Op& op, Type type, int source, Lanes& to, int n) {
  bool negate = op.neg >> source & 1, absolute = op.abs >> source & 1;
  switch (type) {
    case Type::f32:
      if (absolute) for (int l = 0; l < n; ++l) to.u32[l] &= 0x7fffffff;
      if (negate) for (int l = 0; l < n; ++l) to.u32[l] ^= 0x80000000;
      if (!wave.keeps_input32())
        for (int l = 0; l < n; ++l) if (!(to.u32[l] & 0x7f800000)) to.u32[l] &= 0x80000000;
      break;
    case Type::f16: case Type::bf16:
      if (absolute) for (int l = 0; l < n; ++l) to.u32[l] &= 0x7fff;
      if (negate) for (int l = 0; l < n; ++l) to.u32[l] ^= 0x8000;
      if (!wave.keeps_input16_64() && type == Type::f16)
        for (int l = 0; l < n; ++l) if (!(to.u32[l] & 0x7c00)) to.u32[l] &= 0x8000;
      break;
    case Type::f64: case Type::b64:
      if (absolute) for (int l = 0; l < n; ++l) to.u64[l] &= ~(1ull << 63);
      if (negate) for (int l = 0; l < n; ++l) to.u64[l] ^= 1ull << 63;
      if (!wave.keeps_input16_64() && type == Type::f64)
        for (int l = 0; l < n; ++l) if (!(to.u64[l] >> 52 & 0x7ff)) to.u64[l] &= 1ull << 63;
      break;
    case Type::b32:  // v_cndmask_b32 and v_mov_b32 take them as floats
      if (absolute) for (int l = 0; l < n; ++l) to.u32[l] &= 0x7fffffff;
      if (negate) for (int l = 0; l < n; ++l) to.u32[l] ^= 0x80000000;
      break;
    case Type::b16:
      if (absolute) for (int l = 0; l < n; ++l) to.u32[l] &= 0x7fff;
      if (negate) for (int l = 0; l < n; ++l) to.u32[l] ^= 0x8000;
      break;
    default: break;
  }
}

}  // namespace

// Of these registers the first whose value nobody wrote, in lanes that count.
static void blame(Wave& wave, unsigned code, unsigned words) {
  for (unsigned w = 0; w < words; ++w)
    if (wave.exec() & ~wave.vector_known(code + w)) {
      wave.blamed = code + w;
      return;
    }
}

uint32_t Wave::scalar(const Op& op, unsigned code) const {
  if (code < 128) return code == NULL_REGISTER ? 0 : sgpr[code];
  if (code >= VGPR) return 0;
  return constant32(*this, op, code, Type::b32);
}

uint64_t Wave::scalar64(const Op& op, unsigned code) const {
  if (code < 127) return code == NULL_REGISTER ? 0 : pair(code);
  if (code == LITERAL) return op.literal;  // zero-extended: compilers write s_mov_b64 with what fits 32 bits unsigned
  if (code >= VGPR) return 0;
  return code < 128 ? sgpr[code] : constant64(*this, op, code, Type::b64);
}

uint64_t lanes_known(Wave& wave, unsigned code, unsigned words, unsigned halves) {
  uint64_t known = wave.all;
  if (code >= VGPR) {
    if (wave.waits.outstanding) need_waited(wave, code, words, halves);
    for (unsigned w = 0; w < words; ++w) known &= wave.vector_known(code + w);
    if (known != wave.all && wave.exec() & ~known) blame(wave, code, words);
  } else if (code < 128 && code != NULL_REGISTER)
    for (unsigned w = 0; w < words && code + w < 128; ++w) if (!wave.known(code + w)) return 0;
  return known;
}

void fetch_raw(Wave& wave, const Op& op, unsigned code, Type type, Lanes& to) {
  const int n = wave.lanes;
  if (is_wide(type)) {
    if (code >= VGPR) {
      const Register &low = wave.vector(code), &high = wave.vector(code + 1);
      for (int l = 0; l < n; ++l) to.u64[l] = low.lane[l] | uint64_t{high.lane[l]} << 32;
    } else {
      uint64_t value = code < 127 ? wave.scalar64(op, code) : constant64(wave, op, code, type);
      for (int l = 0; l < n; ++l) to.u64[l] = value;
    }
    return;
  }
  if (code >= VGPR) {
    memcpy(to.u32, wave.vector(code).lane, sizeof(uint32_t) * n);
  } else {
    uint32_t value = code < 128 ? wave.scalar(op, code) : constant32(wave, op, code, type);
    for (int l = 0; l < n; ++l) to.u32[l] = value;
  }
}

RegisterHalf register_half(const Wave& wave, const Op& op, unsigned code, unsigned select) {
  if (code < VGPR) return {code, (op.flags & VOP3_FORM) && (op.op_sel >> select & 1)};
  if (op.flags & VOP3_FORM) return {code, static_cast<bool>(op.op_sel >> select & 1)};
  if ((op.flags & SHORT_FORM) && wave.rdna() && code - VGPR >= 128) return {code - 128, true};
  return {code, false};
}

uint64_t fetch(Wave& wave, const Op& op, Type type, int source, Alu& alu) {
  unsigned code = op.src[source];
  const int n = wave.lanes;
  Lanes& to = alu.in[source];
  if (type == Type::mask) {
    alu.mask[source] = code < 128 ? wave.mask(code) : constant64(wave, op, code, Type::b64);
    if (wave.scalar_known(code, n == 64)) return wave.all;
    return wave.doubts.any() && code < 128 ? sure_lanes(wave, code) : 0;
  }
  uint64_t known;
  if (is_half(type) && op.permute != Permute::sdwa) {
    RegisterHalf half = register_half(wave, op, code, source);
    known = lanes_known(wave, half.code, 1, half.high ? HIGH_HALF : LOW_HALF);
    fetch_raw(wave, op, half.code, type, to);
    unsigned shift = half.high ? 16 : 0;
    if (half.code >= VGPR || half.code < 128 || half.high)
      for (int l = 0; l < n; ++l) to.u32[l] = to.u32[l] >> shift & 0xffff;
    else
      for (int l = 0; l < n; ++l) to.u32[l] &= 0xffff;
  } else {
    known = lanes_known(wave, code, words_of(type));
    fetch_raw(wave, op, code, type, to);
  }
  if (op.permute == Permute::sdwa && source < 2 && !is_wide(type)) {
    unsigned select = source ? op.src1_sel : op.src0_sel;
    bool sext = op.flags & (source ? SDWA_SEXT1 : SDWA_SEXT0);
    for (int l = 0; l < n; ++l) to.u32[l] = select_sdwa(to.u32[l], select, sext);
    if (is_half(type)) for (int l = 0; l < n; ++l) to.u32[l] &= 0xffff;
  }
  if (source == 0 && (op.permute == Permute::dpp16 || op.permute == Permute::dpp8)) {
    Lanes from = to;
    uint64_t exec = wave.exec(), known_from = known & ~wave.unsure;
    known = 0;
    for (int l = 0; l < n; ++l) {
      int at = dpp_source(op, l, n);
      bool inactive = at >= 0 && !(exec >> at & 1) && !(op.flags & FETCH_INACTIVE);
      if (op.permute == Permute::dpp16 && (!(op.row_mask >> (l / 16 & 3) & 1) || !(op.bank_mask >> (l / 4 & 3) & 1)))
        alu.active &= ~(1ull << l);
      bool gone = at < 0 || inactive;
      if (gone && op.permute == Permute::dpp16 && !(op.flags & BOUND_CTRL)) alu.active &= ~(1ull << l), alu.left |= 1ull << l;
      if (is_wide(type)) to.u64[l] = gone ? 0 : from.u64[at];
      else to.u32[l] = gone ? 0 : from.u32[at];
      if (at < 0 || (inactive && !(wave.unsure >> at & 1)) || known_from >> at & 1) known |= 1ull << l;
    }
  }
  if (!is_packed(type) && type < Type::raw32) modify(wave, op, type, source, to, n);
  return known;
}

int dpp_source(const Op& op, int lane, int lanes) {
  if (op.permute == Permute::dpp8) return (lane & ~7) | (op.lane_select >> (lane & 7) * 3 & 7);
  unsigned control = op.dpp_ctrl;
  int row = lane & ~15, in_row = lane & 15, amount = control & 15;
  if (control < 0x100) return (lane & ~3) | (control >> (lane & 3) * 2 & 3);
  switch (control & 0x1f0) {
    case 0x100: return in_row + amount < 16 ? lane + amount : -1;      // row_shl
    case 0x110: return in_row - amount >= 0 ? lane - amount : -1;      // row_shr
    case 0x120: return row | ((in_row - amount) & 15);                 // row_ror
    case 0x150: return row | amount;                                   // row_newbcast, row_share
    case 0x160: return row | (in_row ^ amount);                        // row_xmask
    default: break;
  }
  switch (control) {
    case 0x130: return lane + 1 < lanes ? lane + 1 : -1;               // wave_shl
    case 0x134: return (lane + 1) % lanes;                             // wave_rol
    case 0x138: return lane - 1;                                       // wave_shr
    case 0x13c: return (lane + lanes - 1) % lanes;                     // wave_ror
    case 0x140: return row | (15 - in_row);                            // row_mirror
    case 0x141: return (lane & ~7) | (7 - (lane & 7));                 // row_half_mirror
    case 0x142: return row ? row - 1 : -1;                             // row_bcast:15
    case 0x143: return lane >= 32 ? 31 : -1;                           // row_bcast:31
    default: return -1;
  }
}

}  // namespace emu
