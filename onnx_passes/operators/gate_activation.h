// The activation function of a gate of a recurrent operator. A plain value, which kernels take as a parameter.
#pragma once

namespace onnx_train {

// alpha and beta are 0 if the function does not have them.
struct GateActivation {
  enum Kind {
    kSigmoid,
    kTanh,
    kRelu,
    kLeakyRelu,        // x < 0 ? alpha x : x
    kThresholdedRelu,  // x > alpha ? x : 0
    kElu,              // x < 0 ? alpha (exp(x) - 1) : x
    kHardSigmoid,      // min(max(alpha x + beta, 0), 1)
    kScaledTanh,       // alpha tanh(beta x)
    kAffine,           // alpha x + beta
    kSoftsign,
    kSoftplus,
  };
  Kind kind = kTanh;
  float alpha = 0, beta = 0;
  bool operator==(const GateActivation&) const = default;

  const char* name() const;
  bool has_alpha() const;
  bool has_beta() const;
};

}  // namespace onnx_train
