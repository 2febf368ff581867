// Conversions between float32, float16, bfloat16, float64 and integers.
#include "registry.h"

namespace emu {

namespace {

int32_t to_i32(double v) {
  if (std::isnan(v)) return 0;
  return v >= 2147483647.0 ? INT32_MAX : v <= -2147483648.0 ? INT32_MIN : static_cast<int32_t>(v);
}
uint32_t to_u32(double v) { return !(v > 0) ? 0 : v >= 4294967295.0 ? ~0u : static_cast<uint32_t>(v); }
uint32_t to_i16(double v) {
  return static_cast<uint16_t>(std::isnan(v) ? 0 : v >= 32767 ? 32767 : v <= -32768 ? -32768 : static_cast<int>(v));
}
uint32_t to_u16(double v) { return !(v > 0) ? 0 : v >= 65535 ? 65535 : static_cast<uint32_t>(v); }

#define TO32(name, from, expr) {name, Type::b32, {from}, [](Alu& s) { EMU_LANES { const auto& x = s.in[0]; s.out.u32[l] = static_cast<uint32_t>(expr); } }}
#define TOF32(name, from, expr) {name, Type::f32, {from}, [](Alu& s) { EMU_LANES { const auto& x = s.in[0]; s.out.f32[l] = static_cast<float>(expr); } }}
#define TOF64(name, from, expr) {name, Type::f64, {from}, [](Alu& s) { EMU_LANES { const auto& x = s.in[0]; s.out.f64[l] = static_cast<double>(expr); } }}
#define TOF16(name, from, expr) {name, Type::f16, {from}, [](Alu& s) { EMU_LANES { const auto& x = s.in[0]; s.out.u32[l] = to_half(static_cast<double>(expr), s.wave->round16_64()); } }}
#define TO16(name, from, expr) {name, Type::b16, {from}, [](Alu& s) { EMU_LANES { s.out.u32[l] = (expr); } }}

void pack_to_zero(Alu& s) {
  EMU_LANES s.out.u32[l] = to_half(s.in[0].f32[l], to_zero) | to_half(s.in[1].f32[l], to_zero) << 16;
}

const VectorOp OPS[] = {
    TO32("v_cvt_i32_f32", Type::f32, to_i32(x.f32[l])), TO32("v_cvt_u32_f32", Type::f32, to_u32(x.f32[l])),
    TO32("v_cvt_i32_f64", Type::f64, to_i32(x.f64[l])), TO32("v_cvt_u32_f64", Type::f64, to_u32(x.f64[l])),
    TO32("v_cvt_rpi_i32_f32", Type::f32, to_i32(std::floor(x.f32[l] + 0.5f))),
    TO32("v_cvt_nearest_i32_f32", Type::f32, to_i32(std::floor(x.f32[l] + 0.5f))),
    TO32("v_cvt_flr_i32_f32", Type::f32, to_i32(std::floor(x.f32[l]))),
    TO32("v_cvt_floor_i32_f32", Type::f32, to_i32(std::floor(x.f32[l]))),
    TO32("v_cvt_i32_i16", Type::b16, static_cast<int16_t>(x.u32[l])), TO32("v_cvt_u32_u16", Type::b16, x.u32[l] & 0xffff),
    TOF32("v_cvt_f32_i32", Type::b32, x.i32[l]), TOF32("v_cvt_f32_u32", Type::b32, x.u32[l]),
    TOF32("v_cvt_f32_f64", Type::f64, x.f64[l]),
    TOF32("v_cvt_f32_f16", Type::f16, from_half(x.u32[l])), TOF32("v_cvt_f32_bf16", Type::bf16, from_bfloat(x.u32[l])),
    TOF32("v_cvt_f32_ubyte0", Type::b32, x.u32[l] & 0xff), TOF32("v_cvt_f32_ubyte1", Type::b32, x.u32[l] >> 8 & 0xff),
    TOF32("v_cvt_f32_ubyte2", Type::b32, x.u32[l] >> 16 & 0xff), TOF32("v_cvt_f32_ubyte3", Type::b32, x.u32[l] >> 24),
    TOF32("v_cvt_off_f32_i4", Type::b32, (static_cast<int32_t>(x.u32[l] << 28) >> 28) * 0.0625f),
    TOF64("v_cvt_f64_f32", Type::f32, x.f32[l]), TOF64("v_cvt_f64_i32", Type::b32, x.i32[l]),
    TOF64("v_cvt_f64_u32", Type::b32, x.u32[l]),
    TOF16("v_cvt_f16_f32", Type::f32, x.f32[l]), TOF16("v_cvt_f16_u16", Type::b16, x.u32[l] & 0xffff),
    TOF16("v_cvt_f16_i16", Type::b16, static_cast<int16_t>(x.u32[l])),
    TO16("v_cvt_u16_f16", Type::f16, to_u16(s.half(0, l))), TO16("v_cvt_i16_f16", Type::f16, to_i16(s.half(0, l))),
    {"v_cvt_pkrtz_f16_f32", Type::b32, {Type::f32, Type::f32}, pack_to_zero},
    {"v_cvt_pk_rtz_f16_f32", Type::b32, {Type::f32, Type::f32}, pack_to_zero},
    {"v_cvt_pk_f16_f32", Type::b32, {Type::f32, Type::f32}, [](Alu& s) {
       EMU_LANES {  // to nearest even, whatever MODE says
         s.out.u32[l] = 0;
         for (int i = 0; i < 2; ++i) {
           uint32_t half = to_half(s.in[i].f32[l]);
           s.out.u32[l] |= (!s.wave->keeps_output16_64() && !(half & 0x7c00) ? half & 0x8000 : half) << 16 * i;
         }
       }
     }},
    {"v_cvt_pk_bf16_f32", Type::b32, {Type::f32, Type::f32}, [](Alu& s) {
       EMU_LANES s.out.u32[l] = to_bfloat(s.in[0].f32[l]) | to_bfloat(s.in[1].f32[l]) << 16;
     }},
    {"v_cvt_pk_u16_u32", Type::b32, {Type::b32, Type::b32}, [](Alu& s) {
       EMU_LANES s.out.u32[l] = std::min(s.in[0].u32[l], 65535u) | std::min(s.in[1].u32[l], 65535u) << 16;
     }},
    {"v_cvt_pk_i16_i32", Type::b32, {Type::b32, Type::b32}, [](Alu& s) {
       EMU_LANES s.out.u32[l] = to_i16(s.in[0].i32[l]) | to_i16(s.in[1].i32[l]) << 16;
     }},
    {"v_pack_b32_f16", Type::b32, {Type::f16, Type::f16}, [](Alu& s) { EMU_LANES s.out.u32[l] = s.in[0].u32[l] | s.in[1].u32[l] << 16; }},
};

}  // namespace

void register_vector_convert() { add_vectors(OPS); }

}  // namespace emu
