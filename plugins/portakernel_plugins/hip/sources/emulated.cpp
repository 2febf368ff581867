// What a process loads of one emulated kernel: SOURCE's, whose name is KERNEL.
#include SOURCE

extern "C" void launch(unsigned width, unsigned height, unsigned threads, void** arguments) {
    emulator::run(KERNEL, width, height, threads, arguments);
}
