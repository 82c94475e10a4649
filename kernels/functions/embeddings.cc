// Functions for the gradient of an embedding and its update, emitted by add_gather_gradients.cc and sparse_updates.cc.
#include "kernels/functions/functions.h"

namespace onnx_train {
namespace {

// y = sum + dx of GatherGrad along axis 0: the gradient of a weight that is looked up and also used otherwise. A kernel
// adds the rows in the order of the indices.
constexpr const char* kAddGatherGrad = R"(
AddGatherGrad (sum, dy, indices) => (y) {
  rest = Constant <value_ints = [-1]> ()
  wide = Cast <to = 7> (indices)
  places = Unsqueeze (wide, rest)
  y = ScatterND <reduction = "add"> (sum, places, dy)
}
)";

// GatherGrad along axis 0 of a tensor of `shape`, without untouched rows: rows[p] is added to row places[p] of the
// tensor and has its width. If several indices name the same row, the first has the sum; the others have zeros and the
// row's index counted from the end, places[p] < 0. A kernel adds the rows in the order of the indices.
constexpr const char* kCoalesceRows = R"(
CoalesceRows (dy, indices, shape) => (rows, places) {
  zero = Constant <value_ints = [0]> ()
  one = Constant <value_ints = [1]> ()
  rest = Constant <value_ints = [-1]> ()
  rank = Shape (shape)
  size = Slice (shape, zero, one)
  row_shape = Slice (shape, one, rank)
  wide = Cast <to = 7> (indices)
  flat_indices = Reshape (wide, rest)
  count = Shape (flat_indices)
  is_negative = Less (flat_indices, zero)
  wrapped = Add (flat_indices, size)
  from_start = Where (is_negative, wrapped, flat_indices)
  begin = Constant <value_int = 0> ()
  step = Constant <value_int = 1> ()
  end = Squeeze (count)
  order = Range (begin, end, step)
  none = Expand (count, size)
  firsts = ScatterElements <axis = 0, reduction = "min"> (none, from_start, order)
  first = Gather (firsts, from_start)
  rows_shape = Concat <axis = 0> (count, row_shape)
  flat_dy = Reshape <allowzero = 1> (dy, rows_shape)
  zeros_float = ConstantOfShape (rows_shape)
  zeros = CastLike (zeros_float, dy)
  column = Unsqueeze (first, rest)
  rows = ScatterND <reduction = "add"> (zeros, column, flat_dy)
  is_first = Equal (first, order)
  from_end = Sub (from_start, size)
  places = Where (is_first, from_start, from_end)
}
)";

// Sgd without momentum and decay on the rows that CoalesceRows returns:
// w'[places[p]] = w[places[p]] - lr·scale·rows[p]    where places[p] ≥ 0; all other rows do not change
constexpr const char* kSparseSgd = R"(
SparseSgd (w, rows, places, learning_rate, grad_scale) => (next_w) {
    first_axis = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    last = Constant <value_ints = [-1]> ()
    sizes = Shape (w)
    ranks = Shape (sizes)
    rank = Squeeze (ranks)
    row_axes = Range (one, rank, one)
    is_named = GreaterOrEqual (places, first_axis)
    names_row = Unsqueeze (is_named, row_axes)
    scale = CastLike (grad_scale, w)
    rate = CastLike (learning_rate, w)
    g_scaled = Mul (rows, scale)
    change = Mul (g_scaled, rate)
    descent = Neg (change)
    zero_float = Constant <value_float = 0.0> ()
    zero = CastLike (zero_float, w)
    descent_used = Where (names_row, descent, zero)
    column = Unsqueeze (places, last)
    next_w = ScatterND <reduction = "add"> (w, column, descent_used)
})";

// SparseAdam on the rows that CoalesceRows returns. Rows of zeros do not change, nor do rows without a place.
constexpr const char* kSparseAdamRows = R"(
SparseAdamRows <beta1, beta2, epsilon>
(w, rows, places, exp_avg, exp_avg_sq, step, learning_rate, grad_scale) => (next_w, next_exp_avg, next_exp_avg_sq) {
    first_axis = Constant <value_int = 0> ()
    one = Constant <value_int = 1> ()
    last = Constant <value_ints = [-1]> ()
    sizes = Shape (w)
    ranks = Shape (sizes)
    rank = Squeeze (ranks)
    row_axes = Range (one, rank, one)
    zero_float = Constant <value_float = 0.0> ()
    zero = CastLike (zero_float, w)
    is_named = GreaterOrEqual (places, first_axis)
    names_row = Unsqueeze (is_named, row_axes)
    magnitude = ReduceL1 <keepdims = 1> (rows, row_axes)
    is_idle = Equal (magnitude, zero)
    is_read = Not (is_idle)
    moves = And (names_row, is_read)
    column = Unsqueeze (places, last)
    one_double = Constant <value = double {1.0}> ()
    t = Cast <to = 11> (step)
    beta1_double = Constant <value: tensor = @beta1> ()
    beta2_double = Constant <value: tensor = @beta2> ()
    epsilon_double = Constant <value: tensor = @epsilon> ()
    rest1_double = Sub (one_double, beta1_double)
    rest2_double = Sub (one_double, beta2_double)
    rest1 = CastLike (rest1_double, w)
    rest2 = CastLike (rest2_double, w)
    epsilon = CastLike (epsilon_double, w)
    beta1_to_t = Pow (beta1_double, t)
    beta2_to_t = Pow (beta2_double, t)
    correction1 = Sub (one_double, beta1_to_t)
    correction2 = Sub (one_double, beta2_to_t)
    root_correction2 = Sqrt (correction2)
    rate = Cast <to = 11> (learning_rate)
    rate_corrected = Mul (rate, root_correction2)
    step_size_double = Div (rate_corrected, correction1)
    step_size = CastLike (step_size_double, w)
    scale = CastLike (grad_scale, w)
    g = Mul (rows, scale)
    m = Gather (exp_avg, places)
    m_distance = Sub (g, m)
    m_change = Mul (m_distance, rest1)
    m_change_used = Where (moves, m_change, zero)
    next_m = Add (m, m_change_used)
    next_exp_avg = ScatterND <reduction = "add"> (exp_avg, column, m_change_used)
    v = Gather (exp_avg_sq, places)
    g_square = Mul (g, g)
    v_distance = Sub (g_square, v)
    v_change = Mul (v_distance, rest2)
    v_change_used = Where (moves, v_change, zero)
    next_v = Add (v, v_change_used)
    next_exp_avg_sq = ScatterND <reduction = "add"> (exp_avg_sq, column, v_change_used)
    root = Sqrt (next_v)
    denominator = Add (root, epsilon)
    ratio = Div (next_m, denominator)
    change = Mul (ratio, step_size)
    descent = Neg (change)
    descent_used = Where (moves, descent, zero)
    next_w = ScatterND <reduction = "add"> (w, column, descent_used)
})";

}  // namespace

std::vector<FunctionRow> embedding_functions() {
  return {function("AddGatherGrad", kAddGatherGrad), function("CoalesceRows", kCoalesceRows),
          function("SparseSgd", kSparseSgd), function("SparseAdamRows", kSparseAdamRows)};
}

}  // namespace onnx_train
