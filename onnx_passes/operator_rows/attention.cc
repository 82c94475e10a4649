#include "onnx_passes/functions/functions.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {

std::vector<Operator> attention_operators() {
  using enum ElementTypes;
  return {
      Operator{"BlockAttention",
               "q[Q...] k[K...] v[V...] mask?:any @perm_q[#Q] @perm_k[#K] @perm_v[#V] @perm_y[#Y] -> "
               "y[Y...] highest sum where @packed:0 = 0, 2 <= #Q, #Q = #K, #Q = #V, #Q = #Y | "
               "q[Q...] k! v! mask?:any @perm_q[#Q] @perm_k[#Q] @perm_v[#Q] @perm_y[#Y] -> "
               "y[Y...] highest sum where @packed = 1, 3 <= #Q, #Q = #Y",
               kDomain, kOneFloat}
          .narrow({0, 1, 2}, {0}),
      Operator{"BlockAttentionGrad",
               "dy[Y...] q[Q...] k[K...] v[V...] y highest sum mask?:any "
               "@perm_dy[#Y] @perm_q[#Q] @perm_k[#K] @perm_v[#V] @perm_y[#Y] @perm_dq[#Q] @perm_dk[#K] @perm_dv[#V] -> "
               "dq dk dv where @packed:0 = 0, 2 <= #Q, #Q = #K, #Q = #V, #Q = #Y | "
               "dy[Y...] q[Q...] k! v! y highest sum mask?:any "
               "@perm_dy[#Y] @perm_q[#Q] @perm_k[#Q] @perm_v[#Q] @perm_y[#Y] @perm_dq[#Q] @perm_dk[#Q] @perm_dv[#Q] -> "
               "dq where @packed = 1, 3 <= #Q, #Q = #Y",
               kDomain, kOneFloat}
          .narrow({0, 1, 2, 3, 4}, {0, 1, 2}),
  };
}

}  // namespace onnx_train
