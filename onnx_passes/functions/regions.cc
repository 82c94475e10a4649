// The gradients of RoiAlign and MaxRoiPool. A region is cut into bins, and each bin sampled at a grid of points: along
// each axis, sample i of bin p is at start + p bin + (i + 1/2) bin / samples. R regions, P bins, I samples.
//
//     RoiAlignGrad     dx = Aᵀ dy B of each region: y = A x Bᵀ is the mean of the samples
//     RoiAlignMaxGrad  dx = weight dy at the pixel whose product with its weight is the largest of the bin
//     MaxRoiPoolGrad   dx = dy at the largest pixel of the bin, whose pixels along an axis are those of
//                      [start + floor(p bin), start + ceil((p + 1) bin))
#include "onnx_passes/functions/body_text.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train {

std::vector<FunctionRow> region_functions();

namespace {

class RegionBody {
 public:
  std::string mean_grad() {
    constants();
    sampled_boxes();
    const Samples rows = samples(0), columns = samples(1);
    const std::string a = matrix(rows), b = matrix(columns);
    line("a_turned = Transpose <perm = [0, 2, 1]> (", a, ")");
    line("a_of_channels = Unsqueeze (a_turned, second)");
    line("b_of_channels = Unsqueeze (", b, ", second)");
    line("of_rows = MatMul (a_of_channels, dy)");
    line("of_regions = MatMul (of_rows, b_of_channels)");
    line("zeros_float = ConstantOfShape (x_shape)");
    line("zeros = CastLike (zeros_float, dy)");
    line("images = Unsqueeze (batch_indices, second)");
    line("dx = ScatterND <reduction = \"add\"> (zeros, images, of_regions)");
    return t_.text();
  }

  std::string largest_grad() {
    line("x_shape = Shape (x)");
    constants();
    sampled_boxes();
    const Samples rows = samples(0), columns = samples(1);
    const Taps of_rows = taps(rows, "4"), of_columns = taps(columns, "3");
    const std::string starts = let("line_starts", "Mul", of_rows.pixels + ", " + columns.size);
    line("pixels = Add (", starts, ", ", of_columns.pixels, ")");
    line("weights = Mul (", of_rows.weights, ", ", of_columns.weights, ")");
    line("exist = And (", of_rows.exist, ", ", of_columns.exist, ")");
    line("all_shape = Shape (pixels)");
    line("bins_shape = Slice (all_shape, first, fourth)");
    line("region_count = Slice (all_shape, first, second)");
    line("bins = Slice (all_shape, second, fourth)");
    planes("batch_indices");
    line("tap_sizes = Slice (all_shape, fourth, sixth)");
    line("tap_count = ReduceProd <keepdims = 1> (tap_sizes)");
    line("shared_shape = Concat <axis = 0> (region_count, second, bins, tap_count)");
    line("taps_shape = Concat <axis = 0> (region_count, channels, bins, tap_count)");
    for (const char* name : {"pixels", "weights", "exist"}) {
      line(name, "_shared = Reshape <allowzero = 1> (", name, ", shared_shape)");
      line(name, "_of_channels = Expand (", name, "_shared, taps_shape)");
    }
    line("all_taps = Slice (taps_shape, third, fifth_end)");
    line("taps_of_plane = ReduceProd <keepdims = 1> (all_taps)");
    line("flat_shape = Concat <axis = 0> (region_count, channels, taps_of_plane)");
    line("flat_pixels = Reshape <allowzero = 1> (pixels_of_channels, flat_shape)");
    line("flat_picked = GatherElements <axis = 2> (regions_planes, flat_pixels)");
    line("picked = Reshape <allowzero = 1> (flat_picked, taps_shape)");
    line("products = Mul (picked, weights_of_channels)");
    line("lowest = Log (zero)");
    line("candidates = Where (exist_of_channels, products, lowest)");
    line("best = ArgMax <axis = 4, keepdims = 1> (candidates)");
    line("best_pixel = GatherElements <axis = 4> (pixels_of_channels, best)");
    line("best_weight = GatherElements <axis = 4> (weights_of_channels, best)");
    line("dy_column = Unsqueeze (dy, fifth)");
    line("shares = Mul (dy_column, best_weight)");
    scatter_shares("batch_indices");
    return t_.text();
  }

  std::string whole_grad() {
    line("x_shape = Shape (x)");
    constants();
    line("given_images = Gather <axis = 1> (rois, none)");
    line("image_numbers = Cast <to = 7> (given_images)");
    planes("image_numbers");
    const std::string rows = whole_bins(0, "[2, 4]"), columns = whole_bins(1, "[1, 3]");
    line("pixel_square = And (", rows, ", ", columns, ")");
    line("square_shape = Shape (pixel_square)");
    line("region_count = Slice (square_shape, first, second)");
    line("bins = Slice (square_shape, second, fourth)");
    line("flat_shape = Concat <axis = 0> (region_count, second, bins, size)");
    line("has_pixel = Reshape <allowzero = 1> (pixel_square, flat_shape)");
    line("plane_axes = Constant <value_ints = [2, 3]> ()");
    line("plane_rows = Unsqueeze (regions_planes, plane_axes)");
    line("lowest = Log (zero)");
    line("candidates = Where (has_pixel, plane_rows, lowest)");
    line("best_pixel = ArgMax <axis = 4, keepdims = 1> (candidates)");
    line("flags = CastLike (has_pixel, dy)");
    line("is_filled = ReduceMax <keepdims = 1> (flags, fifth)");
    line("dy_column = Unsqueeze (dy, fifth)");
    line("shares = Mul (dy_column, is_filled)");
    scatter_shares("image_numbers");
    return t_.text();
  }

 private:
  // The images as planes: their number, channels, size, and those of the regions.
  void planes(const char* numbers) {
    line("channels = Slice (x_shape, second, third)");
    line("images = Slice (x_shape, first, second)");
    line("image_sizes = Slice (x_shape, third, fifth)");
    line("size = ReduceProd <keepdims = 1> (image_sizes)");
    line("planes_shape = Concat <axis = 0> (images, channels, size)");
    line("planes = Reshape <allowzero = 1> (x, planes_shape)");
    line("regions_planes = Gather <axis = 0> (planes, ", numbers, ")");
  }

  // dx: the shares of all bins, [R, C, P, Q, 1], at the pixel of each.
  void scatter_shares(const char* numbers) {
    line("channel_count = Squeeze (channels)");
    line("channel = Range (none, channel_count, step)");
    line("region_images = Unsqueeze (", numbers, ", second)");
    line("first_planes = Mul (region_images, channels)");
    line("plane_numbers = Add (first_planes, channel)");
    line("plane_starts_flat = Mul (plane_numbers, size)");
    line("bin_axes = Constant <value_ints = [2, 3, 4]> ()");
    line("plane_starts = Unsqueeze (plane_starts_flat, bin_axes)");
    line("places = Add (plane_starts, best_pixel)");
    line("flat_places = Reshape (places, last)");
    line("flat_shares = Reshape (shares, last)");
    line("element_count = ReduceProd <keepdims = 1> (x_shape)");
    line("zeros_float = ConstantOfShape (element_count)");
    line("zeros = CastLike (zeros_float, dy)");
    line("sums = ScatterElements <axis = 0, reduction = \"add\"> (zeros, flat_places, flat_shares)");
    line("dx = Reshape <allowzero = 1> (sums, x_shape)");
  }

  // Along one axis: the coordinates of the samples, moved into the image, whether they were there, [R, P, I], whether
  // the region has so many, [R, 1, I], how many it has, at least 1, [R, 1, 1], and the image's size.
  struct Samples {
    std::string at, is_inside, exist, count, size;
  };
  // Pixels, weights and which exist, such that those of the axes broadcast to [R, bins, bins, taps, taps].
  struct Taps {
    std::string pixels, weights, exist;
  };

  template <typename... Args>
  void line(const Args&... args) {
    t_.line(args...);
  }
  std::string let(const std::string& name, const std::string& op, const std::string& arguments) {
    return t_.let(name, concat(op, " (", arguments, ")"));
  }

  void constants() {
    int64_t number = 0;
    for (const char* name : {"first", "second", "third", "fourth", "fifth", "sixth"}) {
      line(name, " = Constant <value_ints = [", number++, "]> ()");
    }
    line("fifth_end = Constant <value_ints = [5]> ()");
    line("last = Constant <value_ints = [-1]> ()");
    line("none = Constant <value_int = 0> ()");
    line("step = Constant <value_int = 1> ()");
    for (const auto& [name, value] : {std::pair("zero", "0.0"), {"half", "0.5"}, {"one", "1.0"}}) {
      line(name, "_given = Constant <value_float = ", value, "> ()");
      line(name, " = CastLike (", name, "_given, rois)");
    }
    line("scale_given = Constant <value_float: float = @spatial_scale> ()");
    line("scale = CastLike (scale_given, rois)");
    line("scaled = Mul (rois, scale)");
  }

  void sampled_boxes() {
    line("minus_one = Neg (one)");
    line("aligned = Constant <value_int: int = @half_pixel> ()");
    line("is_aligned = Cast <to = 9> (aligned)");
    line("offset = Where (is_aligned, half, zero)");
    line("boxes = Sub (scaled, offset)");
    line("ratio_given = Constant <value_int: int = @sampling_ratio> ()");
    line("ratio = CastLike (ratio_given, rois)");
    line("is_fixed = Greater (ratio, zero)");
  }

  Samples samples(int axis) {
    Samples s;
    const auto column = [&](int at) {
      const std::string index = t_.let("index", concat("Constant <value_ints = [", at, "]> ()"));
      return let("column", "Gather <axis = 1>", "boxes, " + index);
    };
    const std::string start = column(1 - axis), given = let("given", "Sub", column(3 - axis) + ", " + start);
    const std::string wide = let("wide", "Max", given + ", one");
    const std::string length = let("length", "Where", concat("is_aligned, ", given, ", ", wide));
    const std::string bins = t_.let("bins_along", concat("Shape <start = ", axis + 2, ", end = ", axis + 3, "> (dy)"));
    const std::string bin = let("bin", "Div", length + ", " + let("bins_like", "CastLike", bins + ", rois"));
    const std::string wanted = let("wanted", "Where", concat("is_fixed, ratio, ", let("ceiling", "Ceil", bin)));
    const std::string count = let("count", "Unsqueeze", let("counts", "Max", wanted + ", zero") + ", third");
    const std::string most = let("most", "Cast <to = 7>", let("largest", "ReduceMax <keepdims = 0>", count));
    const std::string i = let("i", "CastLike", let("numbers", "Range", concat("none, ", most, ", step")) + ", rois");
    const std::string bin_count = let("bin_count", "Squeeze", bins);
    const std::string p_list = let("bin_numbers", "Range", concat("none, ", bin_count, ", step"));
    const std::string p = let("p", "Unsqueeze", let("p_like", "CastLike", p_list + ", rois") + ", second");
    const std::string bin_cube = let("bin_cube", "Unsqueeze", bin + ", third");
    const std::string bins_before = let("bins_before", "Mul", p + ", " + bin_cube);
    const std::string begin =
        let("begin", "Add", let("start_cube", "Unsqueeze", start + ", third") + ", " + bins_before);
    s.count = let("count_or_one", "Max", count + ", one");
    const std::string way = let("way", "Mul", let("middle", "Add", i + ", half") + ", " + bin_cube);
    const std::string at = let("at", "Add", begin + ", " + let("within", "Div", way + ", " + s.count));
    s.exist = let("exists", "Less", i + ", " + count);
    const std::string index = t_.let("index", concat("Constant <value_int = ", axis + 2, "> ()"));
    s.size = let("size_along", "Gather", "x_shape, " + index);
    const std::string length_like = let("size_like", "CastLike", s.size + ", rois");
    const std::string after = let("after", "GreaterOrEqual", at + ", minus_one");
    s.is_inside = let("is_inside", "And", after + ", " + let("before", "LessOrEqual", at + ", " + length_like));
    const std::string last_pixel = let("last_pixel", "Sub", length_like + ", one");
    s.at = let("inside", "Max", let("bounded", "Min", at + ", " + last_pixel) + ", zero");
    return s;
  }

  // [R, P, pixels]: the mean of the samples' weights of each pixel.
  std::string matrix(const Samples& s) {
    const std::string range = let("pixel_numbers", "Range", concat("none, ", s.size, ", step"));
    const std::string pixels = let("pixel_like", "CastLike", range + ", rois");
    const std::string distance = let(
        "distance", "Abs", let("difference", "Sub", let("at_column", "Unsqueeze", s.at + ", fourth") + ", " + pixels));
    const std::string weight = let("weight", "Max", let("rest", "Sub", "one, " + distance) + ", zero");
    const std::string counted = let("counted", "And", s.is_inside + ", " + s.exist);
    const std::string column = let("counted_column", "Unsqueeze", counted + ", fourth");
    const std::string kept = let("kept", "Where", concat(column, ", ", weight, ", zero"));
    return let("matrix", "Div", let("total", "ReduceSum <keepdims = 0>", kept + ", third") + ", " + s.count);
  }

  // [R, P, pixels] with more axes at `axes`: whether a pixel is in the bin. Halves are rounded away from zero.
  std::string whole_bins(int axis, const char* axes) {
    const auto rounded = [&](int column) {
      const std::string at = t_.let("index", concat("Constant <value_ints = [", column, "]> ()"));
      const std::string given = let("given", "Gather <axis = 1>", "scaled, " + at);
      const std::string size = let("magnitude", "Abs", given), low = let("low", "Floor", size);
      const std::string is_up = let("is_up", "GreaterOrEqual", let("rest", "Sub", size + ", " + low) + ", half");
      const std::string whole = let("whole", "Add", low + ", " + let("up", "CastLike", is_up + ", rois"));
      return let("rounded", "Mul", whole + ", " + let("sign", "Sign", given));
    };
    const auto numbers = [&](const std::string& count) {
      const std::string last = let("count", "Squeeze", count);
      return let("numbers", "CastLike", let("range", "Range", concat("none, ", last, ", step")) + ", rois");
    };
    const std::string start = rounded(2 - axis), end = rounded(4 - axis);
    const std::string given = let("given_length", "Add", let("way", "Sub", end + ", " + start) + ", one");
    const std::string bins = t_.let("bins_along", concat("Shape <start = ", axis + 2, ", end = ", axis + 3, "> (dy)"));
    const std::string bin =
        let("bin", "Div",
            concat(let("length", "Max", given + ", one"), ", ", let("bins_like", "CastLike", bins + ", rois")));
    const std::string p = numbers(bins), next = let("next", "Add", p + ", one");
    const auto edge = [&](const char* round, const std::string& number) {
      const std::string way = let("way", round, let("exact_way", "Mul", bin + ", " + number));
      return let("edge", "Unsqueeze", let("flat_edge", "Add", start + ", " + way) + ", third");
    };
    const std::string size = t_.let("size_along", concat("Shape <start = ", axis + 2, ", end = ", axis + 3, "> (x)"));
    const std::string pixels = numbers(size);
    const std::string is_after = let("is_after", "GreaterOrEqual", pixels + ", " + edge("Floor", p));
    const std::string is_before = let("is_before", "Less", pixels + ", " + edge("Ceil", next));
    const std::string more = t_.let("more_axes", concat("Constant <value_ints = ", axes, "> ()"));
    return let("is_inside", "Unsqueeze", let("is_in_bin", "And", is_after + ", " + is_before) + ", " + more);
  }

  // `other` is the axis of the other taps in the five.
  Taps taps(const Samples& s, const char* other) {
    const bool is_row = other[0] == '4';
    const std::string low = let("low", "Floor", s.at), rest = let("rest", "Sub", s.at + ", " + low);
    const std::string low_pixel = let("low_pixel", "Cast <to = 7>", low);
    const std::string last = let("last_pixel", "Sub", s.size + ", step");
    const std::string high_pixel = let("high_pixel", "Min", let("next", "Add", low_pixel + ", step") + ", " + last);
    const std::string low_weight = let("low_weight", "Sub", "one, " + rest);
    const auto joined = [&](const std::string& a, const std::string& b) {
      const std::string left = let("left", "Unsqueeze", a + ", fourth"),
                        right = let("right", "Unsqueeze", b + ", fourth");
      return let("pair", "Concat <axis = 3>", left + ", " + right);
    };
    const auto spread = [&](const std::string& pairs) {
      const std::string two = t_.let("two_taps", "Constant <value_ints = [1, 1, 2]> ()");
      const std::string shape = let("shape", "Mul", let("at_shape", "Shape", s.at) + ", " + two);
      const std::string flat = let("flat", "Reshape <allowzero = 1>", pairs + ", " + shape);
      const std::string axes = t_.let("axes", concat("Constant <value_ints = [", is_row ? 2 : 1, ", ", other, "]> ()"));
      return let("spread", "Unsqueeze", flat + ", " + axes);
    };
    const std::string counted = let("counted", "And", s.is_inside + ", " + s.exist);
    const std::string counts = let("counts_column", "Unsqueeze", counted + ", fourth");
    const std::string weights = let("weight", "Where", concat(counts, ", ", joined(low_weight, rest), ", zero"));
    const std::string exist = let("exist_all", "Expand", s.exist + ", " + let("taps_shape_along", "Shape", s.at));
    return {spread(joined(low_pixel, high_pixel)), spread(weights), spread(joined(exist, exist))};
  }

  BodyText t_;
};

FunctionRow region_row(const char* op, const char* more, const char* head, std::string (RegionBody::*write)()) {
  return {op, [=](const FunctionCall&) {
            RegionBody body;
            const std::string attributes = concat(" <spatial_scale: float = 1.0", more, "> ");
            return FunctionText{concat(op, attributes, head, " {\n", (body.*write)(), "}\n"), ""};
          }};
}

}  // namespace

std::vector<FunctionRow> region_functions() {
  const char* const sampled = ", sampling_ratio: int = 0, half_pixel: int = 1";
  return {
      region_row("RoiAlignGrad", sampled, "(dy, rois, batch_indices, x_shape) => (dx)", &RegionBody::mean_grad),
      region_row("RoiAlignMaxGrad", sampled, "(dy, x, rois, batch_indices) => (dx)", &RegionBody::largest_grad),
      region_row("MaxRoiPoolGrad", "", "(dy, x, rois) => (dx)", &RegionBody::whole_grad),
  };
}

}  // namespace onnx_train
