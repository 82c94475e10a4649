// The gradients of RoiAlign and MaxRoiPool. A region is cut into bins, and each bin sampled at a grid of points: along
// each axis, sample i of bin p is at start + p bin + (i + 1/2) bin / samples. R regions, P bins, I samples.
//
//     RoiAlignGrad     dx = Aᵀ dy B of each region: y = A x Bᵀ is the mean of the samples
//     RoiAlignMaxGrad  dx = weight dy at the pixel whose product with its weight is the largest of the bin
//     MaxRoiPoolGrad   dx = dy at the largest pixel of the bin, whose pixels along an axis are those of
//                      [start + floor(p bin), start + ceil((p + 1) bin))
#include "onnx_passes/functions/body.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

// 0, 1, .. below the scalar, of the type of `like`.
Term numbers(const Term& count, const Term& like) { return cast_like(range(count), like); }

Term lowest_like(const Term& x) { return log(x.body()->as(0, x)); }

// ---- RoiAlign: bins are sampled

// Along one axis: the coordinates of the samples, moved into the image, whether they were there, [R, P, I], whether
// the region has so many, [R, 1, I], how many it has, at least 1, [R, 1, 1], and the image's size.
struct RegionSamples {
  Term at, is_inside, exist, count, size;
};

RegionSamples region_samples(Body& f, const Term& x_shape, int axis) {
  const Term rois = f.input("rois"), is_aligned = cast(f.attribute("half_pixel"), DType::kBool);
  const Term boxes = rois * f.attribute("spatial_scale") - f.where(is_aligned, f.as(0.5, rois), f.as(0, rois));
  const Term start = gather(boxes, {1 - axis}, 1), given = gather(boxes, {3 - axis}, 1) - start;
  const Term length = where(is_aligned, given, max(given, 1));
  const Term bins = shape(f.input("dy"), axis + 2, axis + 3), bin = length / cast_like(bins, rois);
  const Term ratio = cast_like(f.attribute("sampling_ratio"), rois);
  const Term count = unsqueeze(max(where(ratio > 0, ratio, ceil(bin)), 0), {2});

  const Term i = numbers(cast(reduce_max(count, {}, /*keepdims=*/false), DType::kInt64), rois);
  const Term p = unsqueeze(numbers(squeeze(bins), rois), {1}), bin_cube = unsqueeze(bin, {2});
  RegionSamples s;
  s.count = max(count, 1), s.exist = i < count, s.size = gather(x_shape, axis + 2);
  const Term at = unsqueeze(start, {2}) + p * bin_cube + (i + 0.5) * bin_cube / s.count;
  const Term size = cast_like(s.size, rois);
  s.is_inside = logical_and(at >= -f.as(1, rois), at <= size);
  s.at = max(min(at, size - 1), 0);
  return s;
}

// [R, P, pixels]: the mean of the samples' weights of each pixel.
Term weight_matrix(const RegionSamples& s) {
  const Term distance = abs(unsqueeze(s.at, {3}) - numbers(s.size, s.at));
  const Term counted = unsqueeze(logical_and(s.is_inside, s.exist), {3});
  const Term weights = where(counted, max(1 - distance, 0), 0);
  return reduce_sum(weights, {2}, /*keepdims=*/false) / s.count;
}

Term roi_align_grad(Body& f) {
  const Term dy = f.input("dy"), x_shape = f.input("x_shape");
  const Term a = weight_matrix(region_samples(f, x_shape, 0)), b = weight_matrix(region_samples(f, x_shape, 1));
  const Term of_regions = matmul(matmul(unsqueeze(transpose(a, {0, 2, 1}), {1}), dy), unsqueeze(b, {1}));
  return f.op("ScatterND", {zeros(x_shape, dy), unsqueeze(f.input("batch_indices"), {1}), of_regions},
              "reduction = \"add\"");
}

// ---- Gradients that go to one pixel of each bin

// The images as planes, [N, C, pixels], those of the regions, and the sizes.
struct RegionPlanes {
  Term x_shape, images, channels, size, of_regions;

  // `image_numbers` are those of each region's image.
  RegionPlanes(Body& f, const Term& image_numbers) : x_shape(shape(f.input("x"))), images(image_numbers) {
    channels = slice(x_shape, {1}, {2}), size = reduce_prod(slice(x_shape, {2}, {4}));
    const Term planes = reshape(f.input("x"), concat({slice(x_shape, {0}, {1}), channels, size}, 0));
    of_regions = f.op("Gather", {planes, images}, "axis = 0");
  }

  // dx: the shares of all bins, [R, C, P, Q, 1], at the pixel of each.
  Term scattered(const Term& shares, const Term& pixel) const {
    const Term plane = unsqueeze(images, {1}) * channels + range(squeeze(channels));
    const Term places = unsqueeze(plane * size, {2, 3, 4}) + pixel;
    const Term none = zeros(reduce_prod(x_shape), shares);
    return reshape(scatter_add(none, reshape(places, {-1}), reshape(shares, {-1}), 0), x_shape);
  }
};

// Pixels, weights and which exist, such that those of the axes broadcast to [R, bins, bins, taps, taps].
struct RegionTaps {
  Term pixels, weights, exist;
};

// `axes` are those of the other axis' bins and taps in the five.
RegionTaps region_taps(const RegionSamples& s, const Term& axes) {
  const Term low = floor(s.at), rest = s.at - low, low_pixel = cast(low, DType::kInt64);
  const auto joined = [](const Term& a, const Term& b) { return concat({unsqueeze(a, {3}), unsqueeze(b, {3})}, 3); };
  const auto spread = [&](const Term& pairs) { return unsqueeze(reshape(pairs, shape(s.at) * Term{1, 1, 2}), axes); };
  const Term counted = unsqueeze(logical_and(s.is_inside, s.exist), {3}), exist = expand(s.exist, shape(s.at));
  return {spread(joined(low_pixel, min(low_pixel + 1, s.size - 1))), spread(where(counted, joined(1 - rest, rest), 0)),
          spread(joined(exist, exist))};
}

Term roi_align_max_grad(Body& f) {
  const RegionPlanes planes(f, f.input("batch_indices"));
  const RegionSamples rows = region_samples(f, planes.x_shape, 0), columns = region_samples(f, planes.x_shape, 1);
  const RegionTaps of_rows = region_taps(rows, {2, 4}), of_columns = region_taps(columns, {1, 3});
  const Term pixels = of_rows.pixels * columns.size + of_columns.pixels;

  const Term all = shape(pixels), regions = slice(all, {0}, {1}), bins = slice(all, {1}, {3});
  const Term tap_count = reduce_prod(slice(all, {3}, {5}));
  const Term taps_shape = concat({regions, planes.channels, bins, tap_count}, 0);
  const auto of_channels = [&](const Term& taps) {
    return expand(reshape(taps, concat({regions, {1}, bins, tap_count}, 0)), taps_shape);
  };
  const Term pixel = of_channels(pixels), weight = of_channels(of_rows.weights * of_columns.weights);
  const Term taps_of_plane = reduce_prod(slice(taps_shape, {2}, {5}));
  const Term flat = reshape(pixel, concat({regions, planes.channels, taps_of_plane}, 0));
  const Term picked = reshape(gather_elements(planes.of_regions, flat, 2), taps_shape);
  const Term exist = of_channels(logical_and(of_rows.exist, of_columns.exist));
  const Term candidates = where(exist, picked * weight, lowest_like(f.input("rois")));
  const Term best = f.op("ArgMax", {candidates}, "axis = 4, keepdims = 1", DType::kInt64);
  const Term shares = unsqueeze(f.input("dy"), {4}) * gather_elements(weight, best, 4);
  return planes.scattered(shares, gather_elements(pixel, best, 4));
}

// ---- MaxRoiPool: bins have whole pixels

// Rounded to a whole number, halves away from zero.
Term rounded_away(const Term& x) {
  const Term size = abs(x), low = floor(size);
  return (low + cast_like(size - low >= 0.5, x)) * sign(x);
}

// [R, P, pixels] with more axes at `axes`: whether a pixel is in the bin.
Term pixels_of_bins(Body& f, int axis, const Term& axes) {
  const Term rois = f.input("rois"), scaled = rois * f.attribute("spatial_scale");
  const Term start = rounded_away(gather(scaled, {2 - axis}, 1)), end = rounded_away(gather(scaled, {4 - axis}, 1));
  const Term bins = shape(f.input("dy"), axis + 2, axis + 3);
  const Term bin = max(end - start + 1, 1) / cast_like(bins, rois), p = numbers(squeeze(bins), rois);
  const auto edge = [&](const Term& way) { return unsqueeze(start + way, {2}); };
  const Term pixels = numbers(squeeze(shape(f.input("x"), axis + 2, axis + 3)), rois);
  const Term is_after = pixels >= edge(floor(bin * p)), is_before = pixels < edge(ceil(bin * (p + 1)));
  return unsqueeze(logical_and(is_after, is_before), axes);
}

Term max_roi_pool_grad(Body& f) {
  const Term dy = f.input("dy"), rois = f.input("rois");
  const RegionPlanes planes(f, cast(gather(rois, 0, 1), DType::kInt64));
  const Term square = logical_and(pixels_of_bins(f, 0, {2, 4}), pixels_of_bins(f, 1, {1, 3}));
  const Term sizes = shape(square), regions = slice(sizes, {0}, {1}), bins = slice(sizes, {1}, {3});
  const Term has_pixel = reshape(square, concat({regions, {1}, bins, planes.size}, 0));
  const Term candidates = where(has_pixel, unsqueeze(planes.of_regions, {2, 3}), lowest_like(rois));
  const Term best = f.op("ArgMax", {candidates}, "axis = 4, keepdims = 1", DType::kInt64);
  const Term is_filled = reduce_max(cast_like(has_pixel, dy), {4});
  return planes.scattered(unsqueeze(dy, {4}) * is_filled, best);
}

}  // namespace

std::vector<FunctionRow> region_functions() {
  return {
      function("RoiAlignGrad <spatial_scale: float = 1.0, sampling_ratio: int = 0, half_pixel: int = 1> "
               "(dy, rois, batch_indices, int64 x_shape) => (dx)",
               roi_align_grad),
      function("RoiAlignMaxGrad <spatial_scale: float = 1.0, sampling_ratio: int = 0, half_pixel: int = 1> "
               "(dy, x, rois, int64 batch_indices) => (dx)",
               roi_align_max_grad),
      function("MaxRoiPoolGrad <spatial_scale: float = 1.0> (dy, x, rois) => (dx)", max_roi_pool_grad),
  };
}

}  // namespace onnx_train
