// What Python and the engine hand each other: plain structures, mirrored in ../abi.py field by field.
#pragma once
#include <cstdint>

namespace emu {

// Operand codes: the encodings of the ISA documents (0 to 127 scalar registers, 128 to 255 constants, 256 to 511 vector
// registers), with NULL at 124 and M0 at 125 on every architecture, and accumulation registers at 512 to 767.
enum Code : uint16_t {
  VCC = 106, TTMP = 108, NULL_REGISTER = 124, M0 = 125, EXEC = 126, SHARED_BASE = 235, SHARED_LIMIT = 236,
  PRIVATE_BASE = 237, PRIVATE_LIMIT = 238, VCCZ = 251, EXECZ = 252, SCC = 253, LDS_DIRECT = 254, LITERAL = 255,
  VGPR = 256, AGPR = 512, NO_OPERAND = 0xffff,
};

enum class Permute : uint8_t { none, dpp16, dpp8, sdwa };

// Bits of Op::flags.
enum Flag : uint16_t {
  SHORT_FORM = 1,   // VOP1, VOP2, VOPC: 16-bit operands of RDNA name a half with bit 7 of the register
  FETCH_INACTIVE = 2, BOUND_CTRL = 4,
  OFFSET_ENABLE = 8, INDEX_ENABLE = 16, TO_LDS = 32, RETURNS = 64,
  SDWA_SEXT0 = 128, SDWA_SEXT1 = 256, SCALAR_DST = 512, VOP3_FORM = 1024, PACKED_FORM = 2048,
};

// Bits of Op::counters: vmcnt or loadcnt; lgkmcnt or dscnt; lgkmcnt or kmcnt.
enum Counter : uint8_t { VECTOR_COUNT = 1, LDS_COUNT = 2, SCALAR_COUNT = 4 };

// One decoded instruction.
struct Op {
  uint16_t handler;   // index of the table of handlers; 0 is an instruction that nobody knows
  uint16_t size;      // bytes
  uint32_t offset;    // of its first byte in .text
  uint16_t dst, sdst; // codes
  uint16_t src[4];    // codes, in the order in which the handler takes them
  uint32_t literal;
  int32_t imm;        // SOPK and SOPP: simm16; memory: the byte offset
  int32_t pair;       // VOPD: the index of the second half, else -1
  uint16_t flags;
  uint8_t neg, abs, neg_hi, op_sel, op_sel_hi, clamp, omod;
  Permute permute;
  uint16_t dpp_ctrl;  // DPP16
  uint8_t row_mask, bank_mask;
  uint8_t counters, result_words;  // memory: what counts it until it has ended (Counter), registers of its result
  uint32_t lane_select;  // DPP8: eight times three bits
  uint8_t dst_sel, dst_unused, src0_sel, src1_sel;  // SDWA
  uint8_t cbsz, abid, blgp, cache;  // MFMA; memory: whether it is coherent with other waves
  uint16_t scale[2];  // codes of the scales of v_mfma_scale_*
};
static_assert(sizeof(Op) == 64, "abi.py mirrors this");

struct Region {
  uint64_t base, size;
  uint8_t* host;
  uint8_t* written;  // a byte for each byte: initialised; null where all of it is
  uint32_t writable, tag;
};

enum class Kind : uint32_t {
  outside = 1, read_only, misaligned, uninitialised_lds, uninitialised_register, conflict, budget, unknown, unsupported,
  bad_jump, outside_lds, uninitialised_memory, deadlock, group_conflict, unwaited, host_service,
};

struct Finding {
  uint32_t kind, record;
  uint32_t wave, lane;
  uint32_t workgroup[3];
  uint32_t bytes;
  uint64_t address;
  int64_t distance;   // outside: bytes past the nearest region's end, negative before its begin
  uint32_t region;    // index; 0xffffffff where none is near
  uint32_t other_wave, other_record, count;
  uint32_t other_workgroup[3], reserved;
};

struct Launch {
  const Op* ops;
  const int32_t* index_at;  // by dword of .text: the index of the instruction that begins there, or -1
  uint64_t text_base, text_size;
  uint32_t op_count, flow_count;  // those in flow come first; second halves of VOPD follow
  uint32_t entry;                 // index
  uint32_t major, minor;          // of the architecture: 9, 0x0a for gfx90a; 11, 0
  uint32_t stepping, wave_size;
  uint32_t grid[3], block[3];     // grid in workgroups
  const Region* regions;
  uint32_t region_count;
  uint32_t lds_bytes, private_bytes;
  uint32_t user_sgprs[32], user_sgpr_count;
  uint32_t workgroup_id[3], workgroup_info, workitem_dimensions, mode;
  uint64_t budget;                // instructions of a wave
  uint32_t threads, check_conflicts;
  Finding* findings;
  uint32_t finding_capacity, finding_count;
  uint64_t* executed;   // by instruction: waves that executed it
  uint64_t* lanes;      // by instruction: active lanes
  uint64_t* conflicts;  // by instruction: further cycles for conflicts of LDS banks
  uint32_t* registers;  // tests: vector then scalar registers of the first wave, before and after; else null
  uint64_t* moved;      // by instruction: bytes of memory that lanes loaded and stored
  uint64_t* lds_moved;  // and of LDS
  uint32_t stopped;
  uint32_t check_groups;  // that workgroups do not touch what others write
};

}  // namespace emu
