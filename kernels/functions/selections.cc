// Functions for operators that select as many as there are (lowering/canonical/segments.cc). Their results have one
// shape whatever is found.
#include "kernels/functions/functions.h"

namespace onnx_train {
namespace {

// order[b, c, k] = the number of the box that NonMaxSuppression takes as the k-th of class c of image b, or -1. Boxes
// are two opposite corners or, with `center`, center and size. A box takes part if its score is greater than `least`,
// or if that is no number; at most `most` boxes of a class are taken. A box that is taken drops those whose common part
// with it is more than `overlap` of what both cover.
constexpr const char* kSelectBoxes = R"(
SelectBoxes <center: int = 0> (boxes, scores, most, overlap, least) => (order) {
  none = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  minus_one = Constant <value_int = -1> ()
  second = Constant <value_ints = [1]> ()
  last = Constant <value_ints = [-1]> ()
  zero_float = Constant <value_float = 0.0> ()
  zero = CastLike (zero_float, boxes)
  two_float = Constant <value_float = 2.0> ()
  two = CastLike (two_float, boxes)
  center_given = Constant <value_int: int = @center> ()
  is_center = Cast <to = 9> (center_given)
  scores_shape = Shape (scores)
  count_of = Shape <start = 2> (scores)
  count = Squeeze (count_of)
  numbers = Range (none, count, one)
  a0, b0, a1, b1 = Split <axis = 2, num_outputs = 4> (boxes)
  a_half = Div (a1, two)
  a_from_center = Sub (a0, a_half)
  a_to_center = Add (a0, a_half)
  a_smaller = Min (a0, a1)
  a_larger = Max (a0, a1)
  a_low_column = Where (is_center, a_from_center, a_smaller)
  a_high_column = Where (is_center, a_to_center, a_larger)
  b_half = Div (b1, two)
  b_from_center = Sub (b0, b_half)
  b_to_center = Add (b0, b_half)
  b_smaller = Min (b0, b1)
  b_larger = Max (b0, b1)
  b_low_column = Where (is_center, b_from_center, b_smaller)
  b_high_column = Where (is_center, b_to_center, b_larger)
  a_low_row = Transpose <perm = [0, 2, 1]> (a_low_column)
  a_high_row = Transpose <perm = [0, 2, 1]> (a_high_column)
  b_low_row = Transpose <perm = [0, 2, 1]> (b_low_column)
  b_high_row = Transpose <perm = [0, 2, 1]> (b_high_column)
  a_low = Expand (a_low_row, scores_shape)
  a_high = Expand (a_high_row, scores_shape)
  b_low = Expand (b_low_row, scores_shape)
  b_high = Expand (b_high_row, scores_shape)
  a_length = Sub (a_high, a_low)
  b_length = Sub (b_high, b_low)
  area = Mul (a_length, b_length)
  has_area = Greater (area, zero)
  lowest = Log (zero)
  is_number = Equal (scores, scores)
  is_above = Greater (scores, least)
  is_bound = Equal (least, least)
  is_no_bound = Not (is_bound)
  may_be = Or (is_above, is_no_bound)
  candidates = And (is_number, may_be)
  left_at_end, chosen_first = Scan <body = step (left, number) => (next_left, chosen) {
    keys = Where (left, scores, lowest)
    top = ReduceMax <keepdims = 1> (keys, last)
    is_top = Equal (keys, top)
    is_best = And (is_top, left)
    flags = Cast <to = 6> (is_best)
    best = ArgMax <axis = 2, keepdims = 1> (flags)
    found = ReduceMax <keepdims = 1> (flags, last)
    is_found = Cast <to = 9> (found)
    is_wanted = Less (number, most)
    is_chosen = And (is_found, is_wanted)
    chosen_column = Where (is_chosen, best, minus_one)
    chosen = Squeeze (chosen_column, last)
    best_a_low = GatherElements <axis = 2> (a_low, best)
    best_a_high = GatherElements <axis = 2> (a_high, best)
    best_b_low = GatherElements <axis = 2> (b_low, best)
    best_b_high = GatherElements <axis = 2> (b_high, best)
    best_area = GatherElements <axis = 2> (area, best)
    a_first = Max (a_low, best_a_low)
    a_last = Min (a_high, best_a_high)
    a_common = Sub (a_last, a_first)
    b_first = Max (b_low, best_b_low)
    b_last = Min (b_high, best_b_high)
    b_common = Sub (b_last, b_first)
    a_meets = Greater (a_common, zero)
    b_meets = Greater (b_common, zero)
    common = Mul (a_common, b_common)
    both = Add (area, best_area)
    joint = Sub (both, common)
    share = Div (common, joint)
    is_over = Greater (share, overlap)
    has_joint = Greater (joint, zero)
    has_common = Greater (common, zero)
    best_has_area = Greater (best_area, zero)
    meets = And (a_meets, b_meets)
    has_areas = And (has_area, best_has_area)
    has_parts = And (has_joint, has_common)
    has_all = And (has_areas, has_parts)
    covers = And (meets, has_all)
    is_dropped = And (covers, is_over)
    is_itself = Equal (numbers, best)
    is_gone = Or (is_dropped, is_itself)
    stays = Not (is_gone)
    next_left = And (left, stays)
  }, num_scan_inputs = 1> (candidates, numbers)
  order = Transpose <perm = [1, 2, 0]> (chosen_first)
}
)";

// order = the numbers of the rows of x in ascending order: rows are compared by their first elements that differ. Equal
// rows keep their order.
constexpr const char* kSortRows = R"(
SortRows (x) => (order) {
  none = Constant <value_int = 0> ()
  one = Constant <value_int = 1> ()
  first = Constant <value_ints = [0]> ()
  second = Constant <value_ints = [1]> ()
  last = Constant <value_ints = [2]> ()
  columns = Unsqueeze (x, second)
  rows = Unsqueeze (x, first)
  is_same = Equal (columns, rows)
  differs = Not (is_same)
  flags = Cast <to = 6> (differs)
  place = ArgMax <axis = 2, keepdims = 1> (flags)
  found = ReduceMax <keepdims = 0> (flags, last)
  any_differs = Cast <to = 9> (found)
  is_greater = Greater (columns, rows)
  is_greater_there = GatherElements <axis = 2> (is_greater, place)
  comes_after = Squeeze (is_greater_there, last)
  count_of = Shape <end = 1> (x)
  count = Squeeze (count_of)
  numbers = Range (none, count, one)
  own = Unsqueeze (numbers, second)
  is_later = Greater (own, numbers)
  is_after = Where (any_differs, comes_after, is_later)
  is_after_number = Cast <to = 7> (is_after)
  rank = ReduceSum <keepdims = 0> (is_after_number, second)
  zeros = ConstantOfShape <value = int64[1] {0}> (count_of)
  order = ScatterElements <axis = 0> (zeros, rank, numbers)
}
)";

}  // namespace

std::vector<FunctionRow> selection_functions() {
  return {function("SelectBoxes", kSelectBoxes), function("SortRows", kSortRows)};
}

}  // namespace onnx_train
