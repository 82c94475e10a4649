// Rows of MaxPool, AveragePool, their gradients (functions/convolutions.cc), LpPool and global pools.
#include "kernels/cuda/pooling/pools.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/stored.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

bool supports_pool(const NodeSpec& spec) {
  return is_stored_pair(spec.in_type(), spec.out_type()) && has_spatial_axes(spec.in_shape());
}

bool supports_lp_pool(const NodeSpec& spec) { return supports_pool(spec) && is_float_or_double(spec.in_type()); }

bool supports_max_pool(const NodeSpec& spec) {
  const bool bytes = spec.in_type() == DType::kInt8 || spec.in_type() == DType::kUint8;
  return supports_pool(spec) || (bytes && has_spatial_axes(spec.in_shape()) && spec.one_type(1));
}

bool supports_max_pool_grad(const NodeSpec& spec) { return supports_pool(spec) && spec.in_type(1) == spec.in_type(); }

bool supports_max_unpool(const NodeSpec& spec) {
  return is_float_or_double(spec.in_type()) && spec.one_type(1) && spec.in_shape().size() >= 3;
}

}  // namespace

std::vector<Kernel> pooling_kernels() {
  return {
      {"MaxPool", supports_max_pool, prepare_max_pool},
      {"MaxPoolGrad", supports_max_pool_grad, prepare_max_pool_grad, kDomain},
      {"AveragePool", supports_pool, prepare_average_pool},
      {"AveragePoolGrad", supports_pool, prepare_average_pool_grad, kDomain},
      {"LpPool", supports_lp_pool, prepare_lp_pool},
      {"GlobalAveragePool", supports_pool, prepare_global_average},
      {"GlobalMaxPool", supports_pool, prepare_global_max},
      {"MaxPool", supports_pool, prepare_max_pool, kDomain},
      {"AveragePool", supports_pool, prepare_average_pool, kDomain},
      {"GlobalAveragePool", supports_pool, prepare_global_average, kDomain},
      {"GlobalMaxPool", supports_pool, prepare_global_max, kDomain},
      {"MaxUnpool", supports_max_unpool, prepare_max_unpool, "", "", InputCheck::kChecks},
      {"Col2Im", supports_columns, prepare_col2im},
  };
}

}  // namespace onnx_train::cuda
