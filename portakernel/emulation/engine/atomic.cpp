#include "atomic.h"

namespace emu {

namespace {

uint64_t word(float v) { return bits_of(v); }
float f(uint64_t v) { return float_of(static_cast<uint32_t>(v)); }
double d(uint64_t v) { return double_of(v); }
int32_t i(uint64_t v) { return static_cast<int32_t>(v); }
uint32_t u(uint64_t v) { return static_cast<uint32_t>(v); }
int64_t l(uint64_t v) { return static_cast<int64_t>(v); }

template <class F>
F least(F a, F b) { return std::isnan(a) ? b : b < a ? b : a; }  // of two zeros the one in memory
template <class F>
F most(F a, F b) { return std::isnan(a) ? b : b > a ? b : a; }

uint64_t add_halves(uint64_t a, uint64_t b) {
  uint64_t r = 0;
  for (int h = 0; h < 32; h += 16)
    r |= uint64_t{to_half(static_cast<double>(from_half(a >> h & 0xffff)) + from_half(b >> h & 0xffff))} << h;
  return r;
}
uint64_t add_bfloats(uint64_t a, uint64_t b) {
  uint64_t r = 0;
  for (int h = 0; h < 32; h += 16)
    r |= uint64_t{to_bfloat(from_bfloat(a >> h & 0xffff) + from_bfloat(b >> h & 0xffff))} << h;
  return r;
}

#define DO(expr) [](uint64_t old, uint64_t data, uint64_t compare) -> uint64_t { (void)old, (void)data, (void)compare; return (expr); }

}  // namespace

const AtomicOp ATOMICS[] = {
    {"swap_b32", "swap", 4, DO(data)}, {"swap_b64", "swap_x2", 8, DO(data)},
    {"cmpswap_b32", "cmpswap", 4, DO(u(old) == u(compare) ? data : old)},
    {"cmpswap_b64", "cmpswap_x2", 8, DO(old == compare ? data : old)},
    {"add_u32", "add", 4, DO(u(old) + u(data))}, {"add_u64", "add_x2", 8, DO(old + data)},
    {"sub_u32", "sub", 4, DO(u(old) - u(data))}, {"sub_u64", "sub_x2", 8, DO(old - data)},
    {"rsub_u32", nullptr, 4, DO(u(data) - u(old))}, {"rsub_u64", nullptr, 8, DO(data - old)},
    {"min_i32", "smin", 4, DO(u(std::min(i(old), i(data))))}, {"min_i64", "smin_x2", 8, DO(std::min(l(old), l(data)))},
    {"min_u32", "umin", 4, DO(std::min(u(old), u(data)))}, {"min_u64", "umin_x2", 8, DO(std::min(old, data))},
    {"max_i32", "smax", 4, DO(u(std::max(i(old), i(data))))}, {"max_i64", "smax_x2", 8, DO(std::max(l(old), l(data)))},
    {"max_u32", "umax", 4, DO(std::max(u(old), u(data)))}, {"max_u64", "umax_x2", 8, DO(std::max(old, data))},
    {"and_b32", "and", 4, DO(old & data)}, {"and_b64", "and_x2", 8, DO(old & data)},
    {"or_b32", "or", 4, DO(old | data)}, {"or_b64", "or_x2", 8, DO(old | data)},
    {"xor_b32", "xor", 4, DO(old ^ data)}, {"xor_b64", "xor_x2", 8, DO(old ^ data)},
    {"inc_u32", "inc", 4, DO(u(old) >= u(data) ? 0 : old + 1)}, {"inc_u64", "inc_x2", 8, DO(old >= data ? 0 : old + 1)},
    {"dec_u32", "dec", 4, DO(u(old) == 0 || u(old) > u(data) ? data : old - 1)},
    {"dec_u64", "dec_x2", 8, DO(old == 0 || old > data ? data : old - 1)},
    {"add_f32", "add_f32", 4, DO(word(f(old) + f(data)))}, {"add_f64", "add_f64", 8, DO(bits_of(d(old) + d(data)))},
    {"min_f32", nullptr, 4, DO(word(least(f(old), f(data))))}, {"max_f32", nullptr, 4, DO(word(most(f(old), f(data))))},
    {"min_num_f32", nullptr, 4, DO(word(least(f(old), f(data))))}, {"max_num_f32", nullptr, 4, DO(word(most(f(old), f(data))))},
    {"min_f64", "min_f64", 8, DO(bits_of(least(d(old), d(data))))},
    {"max_f64", "max_f64", 8, DO(bits_of(most(d(old), d(data))))},
    {"pk_add_f16", "pk_add_f16", 4, DO(add_halves(old, data))}, {"pk_add_bf16", "pk_add_bf16", 4, DO(add_bfloats(old, data))},
};
const int ATOMIC_COUNT = sizeof(ATOMICS) / sizeof(*ATOMICS);

namespace {

template <class T>
uint64_t in_one_step(const AtomicOp& op, T* to, uint64_t data, uint64_t compare) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(T)) {  // misaligned, and reported as such
    T old;
    memcpy(&old, to, sizeof old);
    T made = static_cast<T>(op.update(old, data, compare));
    memcpy(static_cast<void*>(to), &made, sizeof made);
    return old;
  }
  T old = __atomic_load_n(to, __ATOMIC_SEQ_CST);
  while (!__atomic_compare_exchange_n(to, &old, static_cast<T>(op.update(old, data, compare)), false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST)) {
  }
  return old;
}

}  // namespace

uint64_t perform(const AtomicOp& op, uint8_t* to, uint64_t data, uint64_t compare) {
  return op.bytes == 4 ? in_one_step(op, reinterpret_cast<uint32_t*>(to), data, compare)
                       : in_one_step(op, reinterpret_cast<uint64_t*>(to), data, compare);
}

}  // namespace emu
