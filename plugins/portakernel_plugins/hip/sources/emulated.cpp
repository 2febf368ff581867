// What a process loads of one emulated kernel: SOURCE's, whose name is KERNEL.
#include "portability.h"
#include "accesses.h"
#include SOURCE

extern "C" __attribute__((visibility("default"))) void launch(unsigned width, unsigned height, unsigned threads, void** arguments) {
    emulator::run(KERNEL, width, height, threads, arguments);
}
