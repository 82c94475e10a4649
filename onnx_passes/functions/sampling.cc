// Interpolated images and their gradients, in ONNX's operators. An image reads a number of taps at each point: pixels,
// and weights that are products of those along its axes. The body depends on the number of axes and the attributes.
//
//     SampleImage            y[n, c, p]  = Σ over taps of weight x[n, c, pixel]
//     SampleImageGradInput   dx[n, c, q] = Σ over the taps that read q of weight dy[n, c, p]
//     SampleImageGradPoints  dpoints[n, p, k] = Σ over taps and c of (derivative of the weight) dy[n, c, p] x[n, c,
//     pixel]
//
// Points are numbers of pixels, or with `normalized` as in GridSample, whose formulas these are.
#include "onnx_passes/functions/body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// What the body depends on.
struct SamplingCall {
  int64_t axes;
  std::string mode, padding;
  bool align_corners, normalized;

  SamplingCall(const FunctionCall& call, size_t points)
      : axes((*call.inputs.at(points).type().dims).back().value()),
        mode(call.text("mode", "linear")),
        padding(call.text("padding_mode", "zeros")),
        align_corners(call.integer("align_corners") != 0),
        normalized(call.integer("normalized") != 0) {}

  int64_t taps_along() const { return mode == "nearest" ? 1 : mode == "linear" ? 2 : 4; }
  int64_t taps() const {
    int64_t all = 1;
    for (int64_t k = 0; k < axes; ++k) all *= taps_along();
    return all;
  }
  std::string overload() const {
    return concat(mode, "_", padding, align_corners ? "_corners" : "", normalized ? "_normalized" : "", "_", axes, "d");
  }
};

// ---- Weights of taps by distance, with a = -0.75: ((a + 2) d - (a + 3)) d² + 1 up to a distance of 1,
// ((a d - 5 a) d + 8 a) d - 4 a up to 2; and their derivatives.
Term near_weight(const Term& d) { return (1.25 * d - 2.25) * d * d + 1; }
Term near_slope(const Term& d) { return (3.75 * d - 4.5) * d; }
Term far_weight(const Term& d) { return ((-0.75 * d + 3.75) * d - 6) * d + 3; }
Term far_slope(const Term& d) { return (-2.25 * d + 7.5) * d - 6; }

// The taps along one axis of an image: pixels, their weights, and the derivatives by the point, [N, P, taps].
struct AxisTaps {
  Term pixels, weights, slopes, size;
};

// Writes a body. Taps of points are [N, P, T], of axis k along it [N, P, taps along an axis].
class SamplingBody {
 public:
  SamplingBody(const SamplingCall& call, Body* f) : call_(call), f_(*f) { find_taps(); }

  Term sample() {
    const Term sums = reduce_sum(picked() * weights_, {3}, /*keepdims=*/false);
    return reshape(sums, concat({planes_, place_sizes_}, 0));
  }

  Term grad_input() {
    const Term shares = reshape(rows() * weights_, pixels_shape_);
    const Term none = zeros(flat_shape_, f_.input("dy"));
    return reshape(scatter_add(none, pixels_, shares, 2), x_shape_);
  }

  Term grad_points() {
    const Term of_taps = reduce_sum(picked() * rows(), {1}, /*keepdims=*/false);
    Terms derivatives;
    for (int64_t k = call_.axes; k-- > 0;) derivatives.push_back(reduce_sum(of_taps * product_of_weights(k), {2}));
    return reshape(concat(derivatives, 2), shape(f_.input("points")));
  }

 private:
  // The pixels and weights of all taps, and the shapes that pixels of all channels have.
  void find_taps() {
    const Term points = f_.input("points");
    x_shape_ = f_.has("x") ? shape(f_.input("x")) : f_.input("x_shape");
    const Term batch = slice(x_shape_, {0}, {1});
    planes_ = slice(x_shape_, {0}, {2});
    const Term sizes = slice(x_shape_, {2}, {INT64_MAX});
    place_sizes_ = shape(points, 1, -1);
    place_count_ = reduce_prod(place_sizes_);
    const Term list = reshape(points, concat({batch, place_count_, {call_.axes}}, 0));
    for (int64_t k = 0; k < call_.axes; ++k) taps_.push_back(taps_along(k, list, gather(sizes, k)));

    Term pixels = spread(taps_[0].pixels, 0);
    for (int64_t k = 1; k < call_.axes; ++k) {
      const AxisTaps& taps = taps_[static_cast<size_t>(k)];
      pixels = pixels * taps.size + spread(taps.pixels, k);
    }
    const Term all_taps = place_count_ * Term{call_.taps()};
    pixels_shape_ = concat({planes_, all_taps}, 0);
    flat_shape_ = concat({planes_, reduce_prod(sizes)}, 0);
    taps_shape_ = concat({batch, place_count_, {call_.taps()}}, 0);
    pixels_ = expand(reshape(pixels, concat({batch, {1}, all_taps}, 0)), pixels_shape_);
    weights_ = unsqueeze(product_of_weights(), {1});
  }

  // x's elements at the pixels, [N, C, P, T].
  Term picked() {
    const Term flat = reshape(f_.input("x"), flat_shape_);
    return reshape(gather_elements(flat, pixels_, 2), concat({planes_, place_count_, {call_.taps()}}, 0));
  }
  // dy as [N, C, P, 1].
  Term rows() { return reshape(f_.input("dy"), concat({planes_, place_count_, {1}}, 0)); }

  // [N, P, taps of axis k] as [N, P, 1.., taps, 1..], which broadcasts with the other axes.
  Term spread(const Term& taps, int64_t k) {
    if (call_.axes == 1) return taps;
    std::vector<int64_t> added;
    for (int64_t i = 0; i < call_.axes; ++i) {
      if (i != k) added.push_back(i + 2);
    }
    return unsqueeze(taps, added);
  }

  // The products over all axes, of the derivatives along axis `derived`, as [N, P, T].
  Term product_of_weights(int64_t derived = -1) {
    Term product;
    for (int64_t k = 0; k < call_.axes; ++k) {
      const AxisTaps& taps = taps_[static_cast<size_t>(k)];
      const Term here = spread(k == derived ? taps.slopes : taps.weights, k);
      product = k == 0 ? here : product * here;
    }
    return reshape(product, taps_shape_);
  }

  AxisTaps taps_along(int64_t k, const Term& list, const Term& size) {
    const Term points = f_.input("points"), length = cast_like(size, points), last = length - 1;
    Term x = gather(list, call_.axes - 1 - k, 2), slope = f_.as(1, points);
    if (call_.normalized) {
      slope = (call_.align_corners ? last : length) / 2;
      x = call_.align_corners ? (x + 1) / 2 * last : ((x + 1) * length - 1) / 2;
    }
    if (call_.mode == "nearest") x = round(x);
    if (call_.padding != "zeros") move_inside(last, &x, &slope);
    const Term first = floor(x), t = x - first;
    // From further away all taps are outside.
    const Term whole = cast(max(min(first, length + 4), -4), DType::kInt64);
    const std::vector<int64_t> steps = call_.mode == "nearest"  ? std::vector<int64_t>{0}
                                       : call_.mode == "linear" ? std::vector<int64_t>{0, 1}
                                                                : std::vector<int64_t>{-1, 0, 1, 2};
    AxisTaps taps = weights_after(t, slope);
    taps.size = size;
    find_pixels(unsqueeze(whole, {2}) + steps, &taps);
    return taps;
  }

  // A coordinate outside of the border is moved inside: to the outermost pixel, or reflected.
  void move_inside(const Term& last, Term* x, Term* slope) {
    const Term low = f_.as(call_.align_corners ? 0 : -0.5, f_.input("points")), high = last - low;
    const Term is_below = *x < low, is_outside = logical_or(is_below, *x > high);
    Term moved, factor = 0;
    if (call_.padding == "border") {
      moved = where(is_below, 0, last);
    } else {
      const Term width = high - low, span = where(width <= 0, 1, width);
      const Term way = where(is_below, low - *x, *x - high);
      const Term turns = floor(way / span), rest = way - turns * span;
      const Term is_even = equal(turns, floor(turns / 2) * 2);
      moved = where(equal(is_below, is_even), low + rest, high - rest);
      factor = where(is_even, -*slope, *slope);
    }
    *x = where(is_outside, moved, *x);
    *slope = where(is_outside, factor, *slope);
  }

  // Of the taps at the distances that t, in [0, 1), is after a pixel; the derivatives times `slope`.
  AxisTaps weights_after(const Term& t, const Term& slope) {
    const Term none = t - t, rest = 1 - t;
    Terms weights = {rest, t}, slopes = {none - 1, none + 1};
    if (call_.mode == "nearest") weights = {none + 1}, slopes = {none};
    if (call_.taps_along() == 4) {
      weights = {far_weight(t + 1), near_weight(t), near_weight(rest), far_weight(rest + 1)};
      slopes = {far_slope(t + 1), near_slope(t), -near_slope(rest), -far_slope(rest + 1)};
    }
    const auto joined = [](Terms taps) {
      for (Term& tap : taps) tap = unsqueeze(tap, {2});
      return concat(taps, 2);
    };
    return {{}, joined(weights), joined(slopes) * unsqueeze(expand(slope, shape(t)), {2}), {}};
  }

  // Pixels that exist: beyond an image of zeros, weights become zero.
  void find_pixels(const Term& places, AxisTaps* taps) {
    const Term none = taps->size - taps->size, last = taps->size - Term{1};
    if (call_.padding == "zeros") {
      const Term inside = logical_and(places >= none, places < taps->size);
      taps->weights = where(inside, taps->weights, 0);
      taps->slopes = where(inside, taps->slopes, 0);
    }
    taps->pixels = max(min(places, last), none);
    if (call_.padding != "reflection") return;
    const Term turn = call_.align_corners ? last : taps->size, period = max(turn + turn, {1});
    const Term rest = f_.op("Mod", {places, period});
    Term mirrored = period - rest;
    if (!call_.align_corners) mirrored = mirrored - Term{1};
    taps->pixels = min(rest, mirrored);
  }

  const SamplingCall& call_;
  Body& f_;
  Term x_shape_, planes_, place_sizes_, place_count_, taps_shape_;
  Term pixels_, pixels_shape_, flat_shape_;  // [N, C, P T], and those of x's planes
  Term weights_;                             // [N, 1, P, T]
  std::vector<AxisTaps> taps_;
};

// A row with the inputs and the output of `head`; input number `points` are the points.
FunctionRow sampling_row(const char* op, const char* head, size_t points, Term (SamplingBody::*write)()) {
  return {op, [=](const FunctionCall& made) {
            const SamplingCall call(made, points);
            Body f(concat(op, " <mode, padding_mode, align_corners: int = 0, normalized: int = 0> ", head), made);
            f.depends_on(call.overload());
            SamplingBody body(call, &f);
            return f.text({(body.*write)()});
          }};
}

}  // namespace

std::vector<FunctionRow> sampling_functions() {
  return {
      sampling_row("SampleImage", "(x, points) => (y)", 1, &SamplingBody::sample),
      sampling_row("SampleImageGradInput", "(dy, points, int64 x_shape) => (dx)", 1, &SamplingBody::grad_input),
      sampling_row("SampleImageGradPoints", "(dy, x, points) => (dpoints)", 2, &SamplingBody::grad_points),
  };
}

}  // namespace onnx_train
