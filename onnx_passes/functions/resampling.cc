// The gradient of Resize: dx = Wᵀ dy along each resized axis, with the matrix of y = W x written in ONNX's operators,
// in float64: any runtime computes it, whatever it makes of Resize itself.
//
// The text depends on the rank, the axes and the modes. Inputs: dy, the shape of x, and of Resize's roi, scales and
// sizes what the matrix depends on; scales and sizes never both.
#include <map>
#include <string>

#include "onnx_passes/functions/body_text.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train {

std::vector<FunctionRow> resampling_functions();

namespace {

// What the text depends on.
struct ResizeCall {
  int64_t rank = 0;
  std::vector<int64_t> axes;
  std::string mode, coordinates, nearest_mode, policy;
  bool antialias = false, exclude_outside = false, scales = false;

  explicit ResizeCall(const FunctionCall& call) : rank(call.inputs.at(0).rank()) {
    std::map<std::string, Attr> attrs;
    for (const Attr& attr : call.attrs) attrs.emplace(attr.name, attr);
    const auto text = [&](const char* name) { return std::get<std::string>(attrs.at(name).value); };
    const auto flag = [&](const char* name) { return std::get<int64_t>(attrs.at(name).value) != 0; };
    axes = std::get<std::vector<int64_t>>(attrs.at("axes").value);
    mode = text("mode");
    coordinates = text("coordinate_transformation_mode");
    nearest_mode = text("nearest_mode");
    policy = text("keep_aspect_ratio_policy");
    antialias = flag("antialias");
    exclude_outside = flag("exclude_outside");
    scales = call.inputs.size() > 3 && call.inputs[3];
  }

  std::string overload() const {
    std::string name = concat(mode, "_", mode == "nearest" ? nearest_mode + "_" : "", coordinates, "_rank", rank);
    for (const int64_t axis : axes) name += concat("_", axis);
    if (antialias) name += "_antialias";
    if (exclude_outside) name += "_exclude_outside";
    return name + "_" + (scales ? "scales" : policy);
  }
};

class ResizeBody {
 public:
  explicit ResizeBody(const ResizeCall& call) : call_(call) {}

  std::string write() {
    t_.line("dy_shape = Shape (dy)");
    for (const auto& [name, value] : {std::pair("half", "0.5"), {"zero", "0.0"}, {"one", "1.0"}, {"two", "2.0"}}) {
      t_.line(name, " = Constant <value = double {", value, "}> ()");
    }
    t_.line("first = Constant <value_ints = [0]> ()");
    t_.line("second = Constant <value_ints = [1]> ()");
    if (call_.mode == "cubic") {
      t_.line("a_float = Constant <value_float: float = @cubic_coeff_a> ()");
      t_.line("a = Cast <to = 11> (a_float)");
    }
    if (!call_.scales && call_.policy != "stretch") find_common_scale();
    std::string dx = "dy";
    for (size_t i = 0; i < call_.axes.size(); ++i) dx = multiply(dx, static_cast<int64_t>(i));
    t_.line("dx = Identity (", dx, ")");
    return t_.text();
  }

 private:
  std::string let(const std::string& name, const std::string& op, const std::string& arguments) {
    return t_.let(name, concat(op, " (", arguments, ")"));
  }
  std::string element(const std::string& name, const std::string& list, int64_t i) {
    const std::string at = t_.let("at", concat("Constant <value_int = ", i, "> ()"));
    return to_double(name, let(name + "_given", "Gather", concat(list, ", ", at)));
  }
  std::string to_double(const std::string& name, const std::string& x) {
    return t_.let(name, concat("Cast <to = 11> (", x, ")"));
  }

  void find_common_scale() {
    std::string list;
    for (const int64_t axis : call_.axes) list += concat(list.empty() ? "" : ", ", axis);
    t_.line("all_axes = Constant <value_ints = [", list, "]> ()");
    t_.line("in_sizes_given = Gather (x_shape, all_axes)");
    t_.line("in_sizes = Cast <to = 11> (in_sizes_given)");
    t_.line("out_sizes = Cast <to = 11> (sizes)");
    t_.line("all_scales = Div (out_sizes, in_sizes)");
    t_.line("common_scale = ", call_.policy == "not_larger" ? "ReduceMin" : "ReduceMax",
            " <keepdims = 0> (all_scales)");
  }

  // dx multiplied by the i-th axis' matrix, transposed.
  std::string multiply(const std::string& dx, int64_t i) {
    const int64_t axis = call_.axes[static_cast<size_t>(i)];
    in_ = element("in", "x_shape", axis);
    out_ = element("out", "dy_shape", axis);
    last_ = let("last", "Sub", in_ + ", one");
    if (call_.scales) {
      scale_ = element("scale", "scales", i);
    } else {
      scale_ = call_.policy == "stretch" ? let("scale", "Div", out_ + ", " + in_) : "common_scale";
    }
    const bool is_whole = !call_.scales && call_.policy == "stretch";
    width_ = is_whole ? out_ : let("width", "Mul", scale_ + ", " + in_);
    places_ = let("places", "Range", concat("zero, ", out_, ", one"));
    const std::string x = call_.coordinates == "tf_crop_and_resize" ? cropped_coordinates(i) : coordinates();
    std::string matrix = call_.mode == "nearest" ? nearest_matrix(x) : weighted_matrix(x);
    if (call_.coordinates == "tf_crop_and_resize") matrix = without_outside(matrix, x);
    matrix = let("matrix_like_dy", "CastLike", matrix + ", dy");
    std::string from, to;
    for (int64_t k = 0; k < call_.rank; ++k) {
      from += static_cast<char>('a' + k);
      to += static_cast<char>(k == axis ? 'z' : 'a' + k);
    }
    return t_.let("product", concat("Einsum <equation = \"", from, ",", static_cast<char>('a' + axis), "z->", to,
                                    "\"> (", dx, ", ", matrix, ")"));
  }

  // x = one_value where the output has one element.
  std::string unless_single(const std::string& x, const std::string& one_value) {
    return let("x", "Where", concat(let("is_single", "Equal", width_ + ", one"), ", ", one_value, ", ", x));
  }
  // places / (width - 1) times `span`.
  std::string spread(const std::string& span) {
    const std::string steps = let("steps", "Sub", width_ + ", one");
    return let("spread", "Div", let("way", "Mul", span + ", " + last_) + ", " + steps);
  }

  std::string coordinates() {
    if (call_.coordinates == "align_corners") return unless_single(spread(places_), "zero");
    if (call_.coordinates == "asymmetric") return let("x", "Div", places_ + ", " + scale_);
    std::string middle = let("middle", "Add", places_ + ", half");
    middle = let("middle", "Div", middle + ", " + scale_);
    if (call_.coordinates == "half_pixel_symmetric") {
      const std::string rest = let("rest", "Sub", concat("one, ", let("share", "Div", out_ + ", " + width_)));
      const std::string offset = let("offset", "Mul", let("center", "Div", in_ + ", two") + ", " + rest);
      middle = let("middle", "Add", offset + ", " + middle);
    }
    const std::string x = let("x", "Sub", middle + ", half");
    return call_.coordinates == "pytorch_half_pixel" ? unless_single(x, let("before", "Neg", "half")) : x;
  }

  std::string cropped_coordinates(int64_t i) {
    const std::string start = element("start", "roi", i);
    const std::string end = element("end", "roi", i + static_cast<int64_t>(call_.axes.size()));
    const std::string span = let("span", "Sub", end + ", " + start);
    const std::string single = let("single", "Div", let("way", "Mul", span + ", " + last_) + ", two");
    const std::string x = unless_single(spread(let("reached", "Mul", places_ + ", " + span)), single);
    return let("x", "Add", x + ", " + let("begin", "Mul", start + ", " + last_));
  }

  // The matrix without the rows whose coordinate is outside the input.
  std::string without_outside(const std::string& matrix, const std::string& x) {
    const std::string after = let("after", "GreaterOrEqual", x + ", zero");
    const std::string before = let("before", "LessOrEqual", x + ", " + last_);
    const std::string inside = let("inside", "And", after + ", " + before);
    return let("matrix", "Where", concat(let("rows", "Unsqueeze", inside + ", second"), ", ", matrix, ", zero"));
  }

  std::string clamped(const std::string& x, const std::string& low, const std::string& high) {
    return let("clamped", "Max", let("below", "Min", x + ", " + high) + ", " + low);
  }
  // One where element `places[i]`, cut to the input, is element j.
  std::string shows(const std::string& places) {
    const std::string shown = let("shown", "Unsqueeze", clamped(places, "zero", last_) + ", second");
    const std::string elements = let("elements", "Range", concat("zero, ", in_, ", one"));
    return to_double("shows", let("same", "Equal", shown + ", " + let("row", "Unsqueeze", elements + ", first")));
  }
  std::string is_inside(const std::string& places) {
    const std::string after = let("after", "GreaterOrEqual", places + ", zero");
    return let("inside", "And", after + ", " + let("before", "LessOrEqual", places + ", " + last_));
  }

  std::string nearest_matrix(const std::string& x) {
    const std::string floor = let("floor", "Floor", x), rest = let("rest", "Sub", x + ", " + floor);
    std::string place = floor;
    if (call_.nearest_mode != "floor") {
      const char* compare = call_.nearest_mode == "round_prefer_ceil" ? "GreaterOrEqual" : "Greater";
      const std::string up = let("up", compare, rest + (call_.nearest_mode == "ceil" ? ", zero" : ", half"));
      place = let("place", "Add", floor + ", " + to_double("step", up));
    }
    const std::string matrix = shows(place);
    if (!call_.exclude_outside) return matrix;
    const std::string inside = let("kept", "Unsqueeze", is_inside(place) + ", second");
    return let("matrix", "Where", concat(inside, ", ", matrix, ", zero"));
  }

  std::string weighted_matrix(std::string x) {
    std::string reach = call_.mode == "linear" ? "one" : "two", stretch;
    if (call_.antialias) {
      stretch = let("stretch", "Min", scale_ + ", one");
      reach = let("reach", "Ceil", let("support", "Div", reach + ", " + stretch));
    }
    // From further away the row is the same.
    x = clamped(x, let("lowest", "Neg", reach), let("highest", "Add", last_ + ", " + reach));
    const std::string twice = let("twice", "Mul", reach + ", two");
    const std::string taps =
        let("taps", "Range", concat(let("low", "Neg", twice), ", ", let("high", "Add", in_ + ", " + twice), ", one"));
    std::string distance = let("difference", "Sub", concat(taps, ", ", let("column", "Unsqueeze", x + ", second")));
    distance = let("distance", "Abs", distance);
    if (call_.antialias) distance = let("distance", "Mul", distance + ", " + stretch);
    std::string weights = call_.mode == "linear"
                              ? let("weights", "Max", let("rest", "Sub", "one, " + distance) + ", zero")
                              : cubic(distance);
    if (call_.antialias) weights = let("weights", "Div", weights + ", " + total(weights));
    if (call_.exclude_outside) {
      weights = let("weights", "Where", concat(is_inside(taps), ", ", weights, ", zero"));
      const std::string sum = total(weights);
      const std::string divisor = let("divisor", "Where", concat(let("none", "Equal", sum + ", zero"), ", one, ", sum));
      weights = let("weights", "Div", weights + ", " + divisor);
    }
    return let("matrix", "MatMul", weights + ", " + shows(taps));
  }

  std::string total(const std::string& weights) { return let("total", "ReduceSum", weights + ", second"); }

  // ((a + 2) d - (a + 3)) d² + 1 up to a distance of 1, ((a d - 5 a) d + 8 a) d - 4 a up to 2.
  std::string cubic(const std::string& d) {
    const auto number = [&](const char* value) {
      return t_.let("number", concat("Constant <value = double {", value, "}> ()"));
    };
    const auto times_a = [&](const char* value) { return let("times_a", "Mul", "a, " + number(value)); };
    std::string near = let("near", "Mul", concat(let("a_and", "Add", "a, two"), ", ", d));
    near = let("near", "Sub", near + ", " + let("a_and", "Add", "a, " + number("3.0")));
    near = let("near", "Mul", near + ", " + d);
    near = let("near", "Mul", near + ", " + d);
    near = let("near", "Add", near + ", one");
    std::string far = let("far", "Sub", let("far", "Mul", "a, " + d) + ", " + times_a("5.0"));
    far = let("far", "Add", let("far", "Mul", far + ", " + d) + ", " + times_a("8.0"));
    far = let("far", "Sub", let("far", "Mul", far + ", " + d) + ", " + times_a("4.0"));
    const std::string reaches = let("reaches", "Less", d + ", two");
    const std::string rest = let("rest", "Where", concat(reaches, ", ", far, ", zero"));
    return let("weights", "Where", concat(let("is_near", "LessOrEqual", d + ", one"), ", ", near, ", ", rest));
  }

  const ResizeCall& call_;
  BodyText t_;
  std::string in_, out_, last_, scale_, width_, places_;  // of the axis at hand
};

FunctionText resize_gradient(const FunctionCall& made) {
  const ResizeCall call(made);
  const char* head =
      "ResizeGrad <axes, mode, coordinate_transformation_mode, nearest_mode, keep_aspect_ratio_policy, antialias, "
      "exclude_outside, cubic_coeff_a: float = -0.75> (dy, x_shape, roi, scales, sizes) => (dx) {\n";
  return {concat(head, ResizeBody(call).write(), "}\n"), call.overload()};
}

}  // namespace

std::vector<FunctionRow> resampling_functions() { return {{"ResizeGrad", resize_gradient}}; }

}  // namespace onnx_train
