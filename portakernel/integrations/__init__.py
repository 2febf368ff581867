"""portakernel inside other libraries, through their own extension points. Each needs its library, the core none."""
