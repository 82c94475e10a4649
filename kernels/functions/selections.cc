// Functions for operators that select as many as there are (lowering/canonical/segments.cc). Their results have one
// shape whatever is found.
#include "kernels/functions/functions.h"
#include "onnx_passes/functions/body.h"

namespace onnx_train {
namespace {

// Of all boxes of a class, or of the best one: borders along two axes, and the area.
struct Boxes {
  Term a_low, a_high, b_low, b_high, area;

  Boxes at(const Term& best) const {
    const auto pick = [&](const Term& x) { return gather_elements(x, best, 2); };
    return {pick(a_low), pick(a_high), pick(b_low), pick(b_high), pick(area)};
  }
};

Boxes find_boxes(Body& f, const Term& boxes, const Term& scores) {
  const Terms given = f.ops("Split", 4, {boxes}, "axis = 2, num_outputs = 4");
  const Term is_center = cast(f.attribute("center"), DType::kBool);
  const auto as_scores = [&](const Term& column) { return expand(transpose(column, {0, 2, 1}), shape(scores)); };
  const auto low = [&](const Term& first, const Term& second) {
    return as_scores(where(is_center, first - second / 2, min(first, second)));
  };
  const auto high = [&](const Term& first, const Term& second) {
    return as_scores(where(is_center, first + second / 2, max(first, second)));
  };
  Boxes all = {
      low(given[0], given[2]), high(given[0], given[2]), low(given[1], given[3]), high(given[1], given[3]), {}};
  all.area = (all.a_high - all.a_low) * (all.b_high - all.b_low);
  return all;
}

// Whether a box's common part with the best one is more than `overlap` of what both cover.
Term is_dropped(const Boxes& all, const Boxes& best, const Term& overlap) {
  const Term a_common = min(all.a_high, best.a_high) - max(all.a_low, best.a_low);
  const Term b_common = min(all.b_high, best.b_high) - max(all.b_low, best.b_low);
  const Term common = a_common * b_common, joint = all.area + best.area - common;
  const Term meets = logical_and(a_common > 0, b_common > 0);
  const Term has_areas = logical_and(all.area > 0, best.area > 0), has_parts = logical_and(joint > 0, common > 0);
  return logical_and(logical_and(meets, logical_and(has_areas, has_parts)), common / joint > overlap);
}

// order[b, c, k] = the number of the box that NonMaxSuppression takes as the k-th of class c of image b, or -1. Boxes
// are two opposite corners or, with `center`, center and size. A box takes part if its score is greater than `least`,
// or if that is no number; at most `most` boxes of a class are taken. A box that is taken drops those whose common part
// with it is more than `overlap` of what both cover.
Term select_boxes(Body& f, const Term& boxes, const Term& scores, const Term& most, const Term& overlap,
                  const Term& least) {
  const Boxes all = find_boxes(f, boxes, scores);
  const Term numbers = range(squeeze(shape_from(scores, 2))), lowest = log(f.as(0, boxes));
  const Term has_bound = equal(least, least), may_be = logical_or(scores > least, logical_not(has_bound));
  const Term candidates = logical_and(equal(scores, scores), may_be);
  const auto step = [&](const Terms& states, const Terms& elements) {
    const Term &left = states[0], &number = elements[0];
    const Term keys = where(left, scores, lowest), is_best = logical_and(equal(keys, reduce_max(keys, {-1})), left);
    const Term flags = cast(is_best, DType::kInt32);
    const Term best = f.op("ArgMax", {flags}, "axis = 2, keepdims = 1", DType::kInt64);
    const Term is_found = cast(reduce_max(flags, {-1}), DType::kBool), is_chosen = logical_and(is_found, number < most);
    const Term is_gone = logical_or(is_dropped(all, all.at(best), overlap), equal(numbers, best));
    return Terms{logical_and(left, logical_not(is_gone)), squeeze(where(is_chosen, best, -1), {-1})};
  };
  return transpose(f.scan({candidates}, {numbers}, /*backwards=*/false, step)[1], {1, 2, 0});
}

// order = the numbers of the rows of x in ascending order: rows are compared by their first elements that differ. Equal
// rows keep their order.
Term sort_rows(Body& f, const Term& x) {
  const Term columns = unsqueeze(x, {1}), rows = unsqueeze(x, {0});
  const Term flags = cast(logical_not(equal(columns, rows)), DType::kInt32);
  const Term place = f.op("ArgMax", {flags}, "axis = 2, keepdims = 1", DType::kInt64);
  const Term any_differs = cast(reduce_max(flags, {2}, /*keepdims=*/false), DType::kBool);
  const Term comes_after = squeeze(gather_elements(columns > rows, place, 2), {2});
  const Term count = f.op("Shape", {x}, "end = 1", DType::kInt64), numbers = range(squeeze(count));
  const Term is_after = where(any_differs, comes_after, unsqueeze(numbers, {1}) > numbers);
  const Term rank = reduce_sum(cast(is_after, DType::kInt64), {1}, /*keepdims=*/false);
  const Term none = f.op("ConstantOfShape", {count}, "value = int64[1] {0}");
  return f.op("ScatterElements", {none, rank, numbers}, "axis = 0");
}

}  // namespace

std::vector<FunctionRow> selection_functions() {
  return {function("SelectBoxes <center: int = 0> (boxes, scores, most, overlap, least) => (order)", select_boxes),
          function("SortRows (x) => (order)", sort_rows)};
}

}  // namespace onnx_train
