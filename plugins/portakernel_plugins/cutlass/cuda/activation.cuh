// The activations of `linear_act`, chosen by an argument of the launch.
//
// One branch for each fragment, which all threads take alike, costs less than five libraries for each tile shape would
// take to compile.
#pragma once

#include "cutlass/array.h"
#include "cutlass/cutlass.h"

// The order is that of the contract's choices.
enum class Activation : int32_t { kNone, kRelu, kGelu, kGeluTanh, kSilu };

namespace portakernel {

// x * sigmoid(z). Beyond float32's exponential it is x * 0 or x * 1, as it should be.
CUTLASS_DEVICE float times_sigmoid(float x, float z) { return __fdividef(x, 1.0f + __expf(-z)); }

// NaN stays NaN.
CUTLASS_DEVICE float relu(float x) { return x < 0.0f ? 0.0f : x; }

CUTLASS_DEVICE float gelu(float x) { return 0.5f * x * (1.0f + erff(0.70710678118654752f * x)); }

// (1 + tanh(u)) / 2 is sigmoid(2 * u), without the cancellation.
CUTLASS_DEVICE float gelu_tanh(float x) {
  return times_sigmoid(x, 1.5957691216057308f * (x + 0.044715f * x * x * x));
}

CUTLASS_DEVICE float silu(float x) { return times_sigmoid(x, x); }

struct ActivationArguments {
  Activation activation = Activation::kNone;
};

template <class Function, class Fragment>
CUTLASS_DEVICE Fragment each(Fragment const& x, Function function) {
  Fragment y;
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < int(Fragment::kElements); ++i) {
    y[i] = function(x[i]);
  }
  return y;
}

// Of a float: that there is one tells CUTLASS that this function has arguments. Of an array: what is called.
template <class T>
struct SelectedActivation {
  using Arguments = ActivationArguments;
};

template <int N>
struct SelectedActivation<cutlass::Array<float, N>> {
  using Fragment = cutlass::Array<float, N>;
  using Arguments = ActivationArguments;

  CUTLASS_HOST_DEVICE Fragment operator()(Fragment const& x, Arguments const& arguments) const {
#if defined(__CUDA_ARCH__)
    switch (arguments.activation) {
      case Activation::kRelu: return each(x, [](float z) { return relu(z); });
      case Activation::kGelu: return each(x, [](float z) { return gelu(z); });
      case Activation::kGeluTanh: return each(x, [](float z) { return gelu_tanh(z); });
      case Activation::kSilu: return each(x, [](float z) { return silu(z); });
      default: break;
    }
#endif
    return x;
  }
};

}  // namespace portakernel
