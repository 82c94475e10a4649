// The gradient of Resize: dx = Wᵀ dy along each resized axis, with the matrix of y = W x written in ONNX's operators,
// in float64: any runtime computes it, whatever it makes of Resize itself.
//
// The body depends on the rank, the axes and the modes. Inputs: dy, the shape of x, and of Resize's roi, scales and
// sizes what the matrix depends on; scales and sizes never both.
#include "onnx_passes/functions/body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// What the body depends on.
struct ResizeCall {
  int64_t rank;
  std::vector<int64_t> axes;
  std::string mode, coordinates, nearest_mode, policy;
  bool antialias, exclude_outside, scales;

  explicit ResizeCall(const FunctionCall& call)
      : rank(call.inputs.at(0).rank()),
        axes(std::get<std::vector<int64_t>>(call.find("axes")->value)),
        mode(call.text("mode")),
        coordinates(call.text("coordinate_transformation_mode")),
        nearest_mode(call.text("nearest_mode")),
        policy(call.text("keep_aspect_ratio_policy")),
        antialias(call.integer("antialias") != 0),
        exclude_outside(call.integer("exclude_outside") != 0),
        scales(call.inputs.size() > 3 && call.inputs[3]) {}

  std::string overload() const {
    std::string name = concat(mode, "_", mode == "nearest" ? nearest_mode + "_" : "", coordinates, "_rank", rank);
    for (const int64_t axis : axes) name += concat("_", axis);
    if (antialias) name += "_antialias";
    if (exclude_outside) name += "_exclude_outside";
    return name + "_" + (scales ? "scales" : policy);
  }
};

Term element(const Term& list, int64_t i) { return cast(gather(list, i), DType::kDouble); }
Term clamped(const Term& x, const Term& low, const Term& high) { return max(min(x, high), low); }
Term sum_of_row(const Term& weights) { return reduce_sum(weights, {1}); }

// ((a + 2) d - (a + 3)) d² + 1 up to a distance of 1, ((a d - 5 a) d + 8 a) d - 4 a up to 2.
Term cubic(const Term& d) {
  const Term a = cast(d.body()->attribute("cubic_coeff_a"), DType::kDouble);
  const Term near = ((a + 2) * d - (a + 3)) * d * d + 1;
  const Term far = ((a * d - a * 5) * d + a * 8) * d - a * 4;
  return where(d <= 1, near, where(d < 2, far, 0));
}

// The matrix of one axis, number i of those that are resized.
class ResizedAxis {
 public:
  ResizedAxis(const ResizeCall& call, Body* f, size_t i) : call_(call), f_(*f), i_(static_cast<int64_t>(i)) {
    in_ = element(f_.input("x_shape"), call.axes[i]);
    out_ = element(shape(f_.input("dy")), call.axes[i]);
    last_ = in_ - 1;
    const bool is_whole = !call.scales && call.policy == "stretch";
    scale_ = call.scales ? element(f_.input("scales"), i_) : is_whole ? out_ / in_ : common_scale();
    width_ = is_whole ? out_ : scale_ * in_;
    places_ = range(out_);
  }

  Term matrix() {
    const bool is_cropped = call_.coordinates == "tf_crop_and_resize";
    const Term x = is_cropped ? cropped_coordinates() : coordinates();
    const Term all = call_.mode == "nearest" ? nearest_matrix(x) : weighted_matrix(x);
    return is_cropped ? without_outside(all, x) : all;
  }

 private:
  // With a policy, all axes have the smallest or the largest scale.
  Term common_scale() {
    const Term in_sizes = f_.op("Gather", {f_.input("x_shape"), call_.axes});
    const Term scales = cast(f_.input("sizes"), DType::kDouble) / cast(in_sizes, DType::kDouble);
    return reduce(call_.policy == "not_larger" ? "ReduceMin" : "ReduceMax", scales, {}, /*keepdims=*/false);
  }

  // x, but one_value where the output has one element.
  Term unless_single(const Term& x, const Term& one_value) { return where(equal(width_, 1), one_value, x); }
  Term spread(const Term& span) { return span * last_ / (width_ - 1); }

  Term coordinates() {
    if (call_.coordinates == "align_corners") return unless_single(spread(places_), 0);
    if (call_.coordinates == "asymmetric") return places_ / scale_;
    Term middle = (places_ + 0.5) / scale_;
    if (call_.coordinates == "half_pixel_symmetric") middle = in_ / 2 * (1 - out_ / width_) + middle;
    const Term x = middle - 0.5;
    return call_.coordinates == "pytorch_half_pixel" ? unless_single(x, -0.5) : x;
  }

  Term cropped_coordinates() {
    const Term roi = f_.input("roi"), start = element(roi, i_);
    const Term span = element(roi, i_ + static_cast<int64_t>(call_.axes.size())) - start;
    return unless_single(spread(places_ * span), span * last_ / 2) + start * last_;
  }

  Term is_inside(const Term& places) { return logical_and(places >= 0, places <= last_); }
  // Without the rows whose place is outside of the input.
  Term without_outside(const Term& matrix, const Term& places) {
    return where(unsqueeze(is_inside(places), {1}), matrix, 0);
  }
  // One where element `places[i]`, cut to the input, is element j.
  Term shows(const Term& places) {
    const Term shown = unsqueeze(clamped(places, 0, last_), {1});
    return cast(equal(shown, unsqueeze(range(in_), {0})), DType::kDouble);
  }

  Term nearest_matrix(const Term& x) {
    Term place = floor(x);
    const Term rest = x - place;
    if (call_.nearest_mode != "floor") {
      const Term up = call_.nearest_mode == "ceil"                ? rest > 0
                      : call_.nearest_mode == "round_prefer_ceil" ? rest >= 0.5
                                                                  : rest > 0.5;
      place = place + cast(up, DType::kDouble);
    }
    return call_.exclude_outside ? without_outside(shows(place), place) : shows(place);
  }

  Term weighted_matrix(const Term& x) {
    Term reach = f_.constant(DType::kDouble, call_.mode == "linear" ? 1 : 2), stretch;
    if (call_.antialias) {
      stretch = min(scale_, 1);
      reach = ceil(reach / stretch);
    }
    // From further away the row is the same.
    const Term column = unsqueeze(clamped(x, -reach, last_ + reach), {1});
    const Term taps = f_.op("Range", {-(reach * 2), in_ + reach * 2, 1});
    Term distance = abs(taps - column);
    if (call_.antialias) distance = distance * stretch;
    Term weights = call_.mode == "linear" ? max(1 - distance, 0) : cubic(distance);
    if (call_.antialias) weights = weights / sum_of_row(weights);
    if (call_.exclude_outside) {
      weights = where(is_inside(taps), weights, 0);
      const Term sum = sum_of_row(weights);
      weights = weights / where(equal(sum, 0), 1, sum);
    }
    return matmul(weights, shows(taps));
  }

  const ResizeCall& call_;
  Body& f_;
  int64_t i_;
  Term in_, out_, last_, scale_, width_, places_;
};

// x multiplied by the matrix of an axis, transposed.
Term multiplied(const Term& x, const Term& matrix, int64_t axis, int64_t rank) {
  std::string from, to;
  for (int64_t k = 0; k < rank; ++k) {
    from += static_cast<char>('a' + k);
    to += static_cast<char>(k == axis ? 'z' : 'a' + k);
  }
  return x.body()->op("Einsum", {x, matrix},
                      concat("equation = \"", from, ",", static_cast<char>('a' + axis), "z->", to, "\""));
}

FunctionText resize_gradient(const FunctionCall& made) {
  const ResizeCall call(made);
  Body f(
      "ResizeGrad <axes, mode, coordinate_transformation_mode, nearest_mode, keep_aspect_ratio_policy, antialias, "
      "exclude_outside, cubic_coeff_a: float = -0.75> (dy, int64 x_shape, roi, scales, int64 sizes) => (dx)",
      made);
  f.depends_on(call.overload());
  Term dx = f.input("dy");
  for (size_t i = 0; i < call.axes.size(); ++i) {
    const Term matrix = cast_like(ResizedAxis(call, &f, i).matrix(), f.input("dy"));
    dx = multiplied(dx, matrix, call.axes[i], call.rank);
  }
  return f.text({dx});
}

}  // namespace

std::vector<FunctionRow> resampling_functions() { return {{"ResizeGrad", resize_gradient}}; }

}  // namespace onnx_train
