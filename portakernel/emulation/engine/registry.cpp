#include "registry.h"

#include <unordered_map>

namespace emu {

namespace {

struct Table {
  std::vector<Handler> handlers;
  std::unordered_map<std::string, int> by_name;
};

Table* filling = nullptr;

const Table& table() {
  static const Table made = [] {
    Table t;
    filling = &t;
    add("unknown", Family::unknown, [](Wave& wave, const Op&) { refuse(wave, Kind::unknown); });
    register_scalar();
    register_scalar_mask();
    register_scalar_float();
    register_scalar_half();
    register_control();
    register_waits();
    register_scalar_memory();
    register_vector_float();
    register_vector_integer();
    register_vector_integer16();
    register_vector_half();
    register_vector_double();
    register_vector_compare();
    register_vector_convert();
    register_vector_small_float();
    register_vector_scaled();
    register_vector_special();
    register_vector_packed();
    register_vector_dot();
    register_lanes();
    register_memory();
    register_buffer();
    register_lds();
    register_lds_atomic();
    register_lds_transposed();
    register_memory_atomic();
    register_matrix();
    register_matrix_wmma();
    filling = nullptr;
    return t;
  }();
  return made;
}

}  // namespace

void add(const std::string& name, Family family, Run run, int32_t param) {
  // a later file's definition of a name takes the place of an earlier one's
  filling->by_name[name] = static_cast<int>(filling->handlers.size());
  filling->handlers.push_back({name, family, run, param, nullptr});
}

void add_vector(const VectorOp* ops, size_t count, Family family) {
  for (size_t i = 0; i < count; ++i) {
    filling->by_name[ops[i].name] = static_cast<int>(filling->handlers.size());
    filling->handlers.push_back({ops[i].name, family, nullptr, 0, &ops[i]});
  }
}

const std::vector<Handler>& handlers() { return table().handlers; }

int find(const char* name) {
  auto at = table().by_name.find(name);
  return at == table().by_name.end() ? 0 : at->second;
}

}  // namespace emu
