// Interpolated images and their gradients, in ONNX's operators. An image reads a number of taps at each point: pixels,
// and weights that are products of those along its axes. The text depends on the number of axes and the attributes.
//
//     SampleImage            y[n, c, p]  = Σ over taps of weight x[n, c, pixel]
//     SampleImageGradInput   dx[n, c, q] = Σ over the taps that read q of weight dy[n, c, p]
//     SampleImageGradPoints  dpoints[n, p, k] = Σ over taps and c of (derivative of the weight) dy[n, c, p] x[n, c,
//     pixel]
//
// Points are numbers of pixels, or with `normalized` as in GridSample, whose formulas these are.
#include <map>
#include <string>

#include "onnx_passes/functions/body_text.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train {

std::vector<FunctionRow> sampling_functions();

namespace {

// What the text depends on.
struct SamplingCall {
  int64_t axes = 0;
  std::string mode, padding;
  bool align_corners = false, normalized = false;

  SamplingCall(const FunctionCall& call, size_t points) {
    axes = (*call.inputs.at(points).type().dims).back().value();
    std::map<std::string, Attr> attrs;
    for (const Attr& attr : call.attrs) attrs.emplace(attr.name, attr);
    const auto text = [&](const char* name, const char* otherwise) {
      const auto found = attrs.find(name);
      return found == attrs.end() ? std::string(otherwise) : std::get<std::string>(found->second.value);
    };
    const auto flag = [&](const char* name) {
      const auto found = attrs.find(name);
      return found != attrs.end() && std::get<int64_t>(found->second.value) != 0;
    };
    mode = text("mode", "linear");
    padding = text("padding_mode", "zeros");
    align_corners = flag("align_corners");
    normalized = flag("normalized");
  }

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

// Writes a body. Taps of points are [N, P, T], of axis k along it [N, P, taps along an axis].
class SamplingBody {
 public:
  explicit SamplingBody(const SamplingCall& call) : call_(call) {}

  std::string sample() {
    t_.line("x_shape = Shape (x)");
    find_taps();
    pick_pixels();
    t_.line("products = Mul (picked, weights_of_channels)");
    t_.line("sums = ReduceSum <keepdims = 0> (products, fourth)");
    t_.line("y_shape = Concat <axis = 0> (planes, place_sizes)");
    t_.line("y = Reshape <allowzero = 1> (sums, y_shape)");
    return t_.text();
  }

  std::string grad_input() {
    find_taps();
    t_.line("rows_shape = Concat <axis = 0> (planes, place_count, second)");
    t_.line("rows = Reshape <allowzero = 1> (dy, rows_shape)");
    t_.line("shares = Mul (rows, weights_of_channels)");
    t_.line("flat_shares = Reshape <allowzero = 1> (shares, pixels_shape)");
    t_.line("zeros_float = ConstantOfShape (flat_shape)");
    t_.line("zeros = CastLike (zeros_float, dy)");
    t_.line("sums = ScatterElements <axis = 2, reduction = \"add\"> (zeros, pixels_of_channels, flat_shares)");
    t_.line("dx = Reshape <allowzero = 1> (sums, x_shape)");
    return t_.text();
  }

  std::string grad_points() {
    t_.line("x_shape = Shape (x)");
    find_taps();
    pick_pixels();
    t_.line("rows_shape = Concat <axis = 0> (planes, place_count, second)");
    t_.line("rows = Reshape <allowzero = 1> (dy, rows_shape)");
    t_.line("products = Mul (picked, rows)");
    t_.line("of_taps = ReduceSum <keepdims = 0> (products, second)");
    std::string list;
    for (int64_t k = call_.axes; k-- > 0;) {
      const std::string share = let("share", "Mul", "of_taps, " + combined(weights_, slopes_, k));
      list += concat(list.empty() ? "" : ", ", let("derivative", "ReduceSum <keepdims = 1>", share + ", third"));
    }
    t_.line("derivatives = Concat <axis = 2> (", list, ")");
    t_.line("points_shape = Shape (points)");
    t_.line("dpoints = Reshape <allowzero = 1> (derivatives, points_shape)");
    return t_.text();
  }

 private:
  std::string let(const std::string& name, const std::string& op, const std::string& arguments) {
    return t_.let(name, concat(op, " (", arguments, ")"));
  }
  // A number of the points' type.
  std::string number(const std::string& value) {
    return let("number", "CastLike", t_.let("given", concat("Constant <value_float = ", value, "> ()")) + ", points");
  }
  std::string list(const std::string& values) {
    return t_.let("list", concat("Constant <value_ints = [", values, "]> ()"));
  }

  // The pixels and weights of all taps, and the shapes that pixels of all channels have.
  void find_taps() {
    t_.line("first = Constant <value_ints = [0]> ()");
    t_.line("second = Constant <value_ints = [1]> ()");
    t_.line("third = Constant <value_ints = [2]> ()");
    t_.line("fourth = Constant <value_ints = [3]> ()");
    t_.line("all = Constant <value_ints = [9223372036854775807]> ()");
    for (const auto& [name, value] : {std::pair("zero", "0.0"), {"half", "0.5"}, {"one", "1.0"}, {"two", "2.0"}}) {
      t_.line(name, "_given = Constant <value_float = ", value, "> ()");
      t_.line(name, " = CastLike (", name, "_given, points)");
    }
    t_.line("batch = Slice (x_shape, first, second)");
    t_.line("planes = Slice (x_shape, first, third)");
    t_.line("sizes = Slice (x_shape, third, all)");
    t_.line("place_sizes = Shape <start = 1, end = -1> (points)");
    t_.line("place_count = ReduceProd <keepdims = 1> (place_sizes)");
    t_.line("axis_count = Constant <value_ints = [", call_.axes, "]> ()");
    t_.line("list_shape = Concat <axis = 0> (batch, place_count, axis_count)");
    t_.line("point_list = Reshape <allowzero = 1> (points, list_shape)");
    for (int64_t k = 0; k < call_.axes; ++k) find_taps_along(k);
    std::string pixels;
    for (int64_t k = 0; k < call_.axes; ++k) {
      const std::string here = spread(places_[static_cast<size_t>(k)], k);
      pixels = k == 0 ? here
                      : let("pixels", "Add",
                            let("line_starts", "Mul", concat(pixels, ", ", pixel_sizes_[static_cast<size_t>(k)])) +
                                ", " + here);
    }
    t_.line("tap_count = Constant <value_ints = [", call_.taps(), "]> ()");
    t_.line("taps_shape = Concat <axis = 0> (batch, place_count, tap_count)");
    t_.line("taps_shape_of_channels = Concat <axis = 0> (planes, place_count, tap_count)");
    t_.line("all_taps = Mul (place_count, tap_count)");
    t_.line("pixels_shape = Concat <axis = 0> (planes, all_taps)");
    t_.line("size = ReduceProd <keepdims = 1> (sizes)");
    t_.line("flat_shape = Concat <axis = 0> (planes, size)");
    t_.line("shared_shape = Concat <axis = 0> (batch, second, all_taps)");
    t_.line("pixels_shared = Reshape <allowzero = 1> (", pixels, ", shared_shape)");
    t_.line("pixels_of_channels = Expand (pixels_shared, pixels_shape)");
    t_.line("weights = Identity (", combined(weights_, weights_, 0), ")");
    t_.line("weights_of_channels = Unsqueeze (weights, second)");
  }

  void pick_pixels() {
    t_.line("flat = Reshape <allowzero = 1> (x, flat_shape)");
    t_.line("picked_flat = GatherElements <axis = 2> (flat, pixels_of_channels)");
    t_.line("picked = Reshape <allowzero = 1> (picked_flat, taps_shape_of_channels)");
  }

  // [N, P, taps of axis k] as [N, P, 1.., taps, 1..], which broadcasts with the other axes.
  std::string spread(const std::string& taps, int64_t k) {
    if (call_.axes == 1) return taps;
    std::string added;
    for (int64_t i = 0; i < call_.axes; ++i) {
      if (i != k) added += concat(added.empty() ? "" : ", ", i + 2);
    }
    return let("spread", "Unsqueeze", taps + ", " + list(added));
  }

  // The products over all axes, of the second list for axis `other`, as [N, P, T].
  std::string combined(const std::vector<std::string>& of, const std::vector<std::string>& at_other, int64_t other) {
    std::string product;
    for (int64_t k = 0; k < call_.axes; ++k) {
      const std::string here = spread((k == other ? at_other : of)[static_cast<size_t>(k)], k);
      product = k == 0 ? here : let("product", "Mul", product + ", " + here);
    }
    return let("combined", "Reshape <allowzero = 1>", product + ", taps_shape");
  }

  void find_taps_along(int64_t k) {
    const std::string axis = t_.let("axis", concat("Constant <value_int = ", k, "> ()"));
    const std::string column = t_.let("column", concat("Constant <value_int = ", call_.axes - 1 - k, "> ()"));
    const std::string size = let("size_of_axis", "Gather", "sizes, " + axis),
                      length = let("length", "CastLike", size + ", points");
    pixel_sizes_.push_back(size);
    std::string x = let("x_at", "Gather <axis = 2>", "point_list, " + column), scale = "one";
    const std::string last = let("last", "Sub", length + ", one");
    if (call_.normalized) {
      scale = let("scale", "Div", (call_.align_corners ? last : length) + ", two");
      x = let("x_at", "Add", x + ", one");
      if (call_.align_corners) {
        x = let("x_at", "Mul", let("part", "Div", x + ", two") + ", " + last);
      } else {
        x = let("x_at", "Mul", x + ", " + length);
        x = let("x_at", "Div", let("shifted", "Sub", x + ", one") + ", two");
      }
    }
    if (call_.mode == "nearest") x = let("x_at", "Round", x);
    std::string slope = scale;
    if (call_.padding != "zeros") move_inside(last, &x, &slope);
    const std::string floor = let("floor", "Floor", x), t = let("t", "Sub", x + ", " + floor);
    add_weights(t, slope);
    // From further away all taps are outside.
    const std::string far = let("far", "Add", length + ", " + number("4.0"));
    const std::string near = let("bounded", "Max", let("bounded", "Min", floor + ", " + far) + ", " + number("-4.0"));
    const std::string whole = let("whole", "Cast <to = 7>", near);
    const char* steps = call_.mode == "nearest" ? "0" : call_.mode == "linear" ? "0, 1" : "-1, 0, 1, 2";
    const std::string places = let("places", "Add", let("column", "Unsqueeze", whole + ", third") + ", " + list(steps));
    places_.push_back(pixels_inside(places, size));
  }

  // A coordinate outside of the border is moved inside: to the outermost pixel, or reflected.
  void move_inside(const std::string& last, std::string* x, std::string* slope) {
    const std::string low = call_.align_corners ? "zero" : let("low", "Neg", "half");
    const std::string high = let("high", "Sub", last + ", " + low);
    const std::string is_below = let("is_below", "Less", *x + ", " + low);
    const std::string is_above = let("is_above", "Greater", *x + ", " + high);
    const std::string is_outside = let("is_outside", "Or", is_below + ", " + is_above);
    std::string moved, factor = "zero";
    if (call_.padding == "border") {
      moved = let("moved", "Where", concat(is_below, ", zero, ", last));
    } else {
      const std::string width = let("width", "Sub", high + ", " + low);
      const std::string is_point = let("is_point", "LessOrEqual", width + ", zero");
      const std::string span = let("span", "Where", concat(is_point, ", one, ", width));
      const std::string below = let("below", "Sub", low + ", " + *x), above = let("above", "Sub", *x + ", " + high);
      const std::string way = let("way", "Where", concat(is_below, ", ", below, ", ", above));
      const std::string turns = let("turns", "Floor", let("ratio", "Div", way + ", " + span));
      const std::string rest = let("rest", "Sub", way + ", " + let("turned", "Mul", turns + ", " + span));
      const std::string pairs = let("pairs", "Floor", let("ratio", "Div", turns + ", two"));
      const std::string is_even = let("is_even", "Equal", turns + ", " + let("even", "Mul", pairs + ", two"));
      const std::string from_low = let("from_low", "Equal", is_below + ", " + is_even);
      moved = let("moved", "Where",
                  concat(from_low, ", ", let("after", "Add", low + ", " + rest), ", ",
                         let("before", "Sub", high + ", " + rest)));
      factor = let("factor", "Where", concat(is_even, ", ", let("minus", "Neg", *slope), ", ", *slope));
    }
    *x = let("inside", "Where", concat(is_outside, ", ", moved, ", ", *x));
    *slope = let("slope", "Where", concat(is_outside, ", ", factor, ", ", *slope));
  }

  // Weights of the taps at the distances that t, in [0, 1), is after a pixel; and their derivatives times `slope`.
  void add_weights(const std::string& t, const std::string& slope) {
    std::vector<std::string> weights, slopes;
    if (call_.mode == "nearest") {
      weights = {let("weight", "Add", let("nothing", "Sub", t + ", " + t) + ", one")};
      slopes = {let("nothing", "Sub", t + ", " + t)};
    } else if (call_.mode == "linear") {
      const std::string nothing = let("nothing", "Sub", t + ", " + t);
      weights = {let("weight", "Sub", "one, " + t), t};
      slopes = {let("falls", "Sub", nothing + ", one"), let("rises", "Add", nothing + ", one")};
    } else {
      const std::string rest = let("rest", "Sub", "one, " + t);
      const std::string before = let("before", "Add", t + ", one"), after = let("after", "Add", rest + ", one");
      weights = {far_weight(before), near_weight(t), near_weight(rest), far_weight(after)};
      slopes = {far_slope(before), near_slope(t), let("minus", "Neg", near_slope(rest)),
                let("minus", "Neg", far_slope(after))};
    }
    weights_.push_back(joined("weights_along", weights));
    const std::string column = let("column", "Unsqueeze", expanded(slope, t) + ", third");
    slopes_.push_back(let("slopes_along", "Mul", joined("derivatives_along", slopes) + ", " + column));
  }

  // A number or a tensor like t, as a tensor like t.
  std::string expanded(const std::string& slope, const std::string& t) {
    return let("slopes", "Expand", slope + ", " + let("t_shape", "Shape", t));
  }
  std::string joined(const std::string& name, const std::vector<std::string>& taps) {
    std::string all;
    for (const std::string& tap : taps) {
      all += concat(all.empty() ? "" : ", ", let("column", "Unsqueeze", tap + ", third"));
    }
    return let(name, "Concat <axis = 2>", all);
  }

  // With a = -0.75: ((a + 2) d - (a + 3)) d² + 1 up to a distance of 1, ((a d - 5 a) d + 8 a) d - 4 a up to 2.
  std::string polynomial(const std::string& name, const std::string& d, const std::vector<const char*>& factors) {
    std::string sum = number(factors[0]);
    for (size_t i = 1; i < factors.size(); ++i) {
      sum = let(name, "Mul", sum + ", " + d);
      if (factors[i]) sum = let(name, "Add", sum + ", " + number(factors[i]));
    }
    return sum;
  }
  std::string near_weight(const std::string& d) { return polynomial("near", d, {"1.25", "-2.25", nullptr, "1.0"}); }
  std::string near_slope(const std::string& d) { return polynomial("near_slope", d, {"3.75", "-4.5", nullptr}); }
  std::string far_weight(const std::string& d) { return polynomial("far", d, {"-0.75", "3.75", "-6.0", "3.0"}); }
  std::string far_slope(const std::string& d) { return polynomial("far_slope", d, {"-2.25", "7.5", "-6.0"}); }

  // Pixels that exist: beyond an image of zeros, weights become zero.
  std::string pixels_inside(const std::string& places, const std::string& size) {
    const std::string none = let("none", "Sub", size + ", " + size), one = list("1");
    const std::string last = let("last", "Sub", size + ", " + one);
    if (call_.padding == "zeros") {
      const std::string after = let("after", "GreaterOrEqual", places + ", " + none);
      const std::string inside = let("inside", "And", after + ", " + let("before", "Less", places + ", " + size));
      weights_.back() = let("weights_inside", "Where", concat(inside, ", ", weights_.back(), ", zero"));
      slopes_.back() = let("slopes_inside", "Where", concat(inside, ", ", slopes_.back(), ", zero"));
    }
    if (call_.padding != "reflection") {
      return let("pixels_along", "Max", let("bounded", "Min", places + ", " + last) + ", " + none);
    }
    const std::string turn = call_.align_corners ? last : size;
    const std::string period = let("period", "Max", let("twice", "Add", turn + ", " + turn) + ", " + one);
    const std::string rest = let("rest", "Mod", places + ", " + period);
    std::string mirrored = let("mirrored", "Sub", period + ", " + rest);
    if (!call_.align_corners) mirrored = let("mirrored", "Sub", mirrored + ", " + one);
    return let("pixels_along", "Min", rest + ", " + mirrored);
  }

  const SamplingCall& call_;
  BodyText t_;
  std::vector<std::string> places_, weights_, slopes_, pixel_sizes_;  // by axis
};

// A row whose text has the inputs and the output of `head`; input number `points` are the points.
FunctionRow sampling_row(const char* op, const char* head, size_t points, std::string (SamplingBody::*write)()) {
  return {op, [=](const FunctionCall& made) {
            const SamplingCall call(made, points);
            SamplingBody body(call);
            const char* attributes = " <mode, padding_mode, align_corners: int = 0, normalized: int = 0> ";
            return FunctionText{concat(op, attributes, head, " {\n", (body.*write)(), "}\n"), call.overload()};
          }};
}

}  // namespace

std::vector<FunctionRow> sampling_functions() {
  return {
      sampling_row("SampleImage", "(x, points) => (y)", 1, &SamplingBody::sample),
      sampling_row("SampleImageGradInput", "(dy, points, x_shape) => (dx)", 1, &SamplingBody::grad_input),
      sampling_row("SampleImageGradPoints", "(dy, x, points) => (dpoints)", 2, &SamplingBody::grad_points),
  };
}

}  // namespace onnx_train
