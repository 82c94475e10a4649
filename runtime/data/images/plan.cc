#include "runtime/data/images/plan.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/ir/error.h"
#include "runtime/data/images/decode.h"
#include "runtime/data/images/transform.h"

namespace onnx_train {
namespace {

bool is_crop(const Step& step) { return step.name == "crop" || step.name == "center_crop"; }

bool is_geometry(const Step& step) { return step.name == "resize" || step.name == "letterbox" || is_crop(step); }

// Dimensions of the model's input without the batch; 0: not known.
std::vector<int> sizes_of_input(const InputSpec& spec) {
  std::vector<int> sizes;
  for (size_t i = 1; spec.type.has_rank() && i < spec.type.dims->size(); ++i) {
    const Dim& dim = (*spec.type.dims)[i];
    sizes.push_back(dim.known() ? static_cast<int>(std::min<int64_t>(dim.value(), 1 << 30)) : 0);
  }
  return sizes;
}

[[noreturn]] void fail_input(const InputSpec& spec, const std::string& why) {
  fail_as(ErrorCode::kData, "the input '", spec.name, "' takes no pictures: it is ", to_string(spec.type), ", ", why);
}

bool is_channels(int size) { return size == 1 || size == 3; }

// Fills in the layout and the channels. Returns the model's height and width.
std::pair<int, int> read_layout(const InputSpec& spec, const std::vector<Step>& steps, PicturePlan* plan,
                                std::vector<std::string>* notes) {
  const std::vector<int> sizes = sizes_of_input(spec);
  plan->is_grey = find_step(steps, "grey");
  plan->is_bgr = find_step(steps, "bgr");
  if (sizes.size() == 2) {
    plan->has_channel_axis = false;
    plan->channels = 1;
    return {sizes[0], sizes[1]};
  }
  if (sizes.size() != 3) fail_input(spec, "not [batch, channels, height, width] or [batch, height, width, channels]");
  const bool first = is_channels(sizes[0]), last = is_channels(sizes[2]);
  const bool is_told = find_step(steps, "hwc") || find_step(steps, "chw");
  plan->is_hwc = is_told ? find_step(steps, "hwc") != nullptr : last && !first;
  const int channels = plan->is_hwc ? sizes[2] : sizes[0];
  if (!is_told && (first == last) && (first || channels == 0)) {
    notes->push_back(concat("'", spec.name, "' is ", to_string(spec.type),
                            ": channels are taken to come first, as [batch, ",
                            "channels, height, width]; --preprocess hwc says otherwise"));
  }
  if (channels != 0 && !is_channels(channels)) fail_input(spec, "without an axis of 1 or 3 channels");
  plan->channels = channels != 0 ? channels : plan->is_grey ? 1 : 3;
  if (plan->channels == 1 && (find_step(steps, "rgb") || plan->is_bgr)) {
    fail_input(spec, "which has one channel, and no place for colours");
  }
  return plan->is_hwc ? std::pair(sizes[0], sizes[1]) : std::pair(sizes[1], sizes[2]);
}

// The size after the steps; 0 where it depends on the picture.
std::pair<int, int> size_after(const std::vector<Step>& geometry) {
  std::pair<int, int> size = {0, 0};
  for (const Step& step : geometry) {
    const int first = static_cast<int>(step.numbers[0]), second = static_cast<int>(step.number(1, first));
    const bool is_whole = step.name != "resize" || step.numbers.size() == 2;
    size = is_whole ? std::pair(first, second) : std::pair(0, 0);
  }
  return size;
}

// Adds the steps that are not written; says so.
void add_defaults(const InputSpec& spec, const PicturePlan& plan, int height, int width, std::vector<Step>* steps,
                  std::vector<std::string>* notes) {
  const auto size = notes->size();
  const bool has_geometry = std::any_of(steps->begin(), steps->end(), is_geometry);
  const bool has_range = find_step(*steps, "scale") || find_step(*steps, "normalize");
  if (!has_geometry) {
    // Neither changes a picture that has the size already.
    const std::string text = height == width ? concat("resize(", height, "), crop(", height, ")")
                                             : concat("resize(", height, ", ", width, ")");
    const std::vector<Step> added = read_preprocess_steps("--preprocess", text);
    steps->insert(steps->begin(), added.begin(), added.end());
  }
  const bool adds_range = !has_range && !plan.is_bytes;
  const bool of_bytes = !spec.of_bytes.empty();
  if (adds_range) steps->push_back(read_preprocess_steps("--preprocess", of_bytes ? "scale(1)" : "scale(1/255)")[0]);
  if (has_geometry && !adds_range) return;
  const std::string why = adds_range && of_bytes ? concat(" and ", spec.of_bytes) : "";
  notes->insert(notes->begin() + static_cast<ptrdiff_t>(size),
                has_geometry ? concat("pictures enter '", spec.name, "' by ", text_of(*steps), ": ", steps->back().text,
                                      " was added", of_bytes ? concat(", for ", spec.of_bytes) : "", "; write ",
                                      of_bytes ? "scale(1/255) to make them 0 to 1" : "scale(1) to leave it out")
                             : concat("pictures enter '", spec.name, "' by ", text_of(*steps), ", for it is ",
                                      to_string(spec.type), why, "; --preprocess says otherwise"));
}

Filter filter_of(const Step& step, bool is_mask) {
  return is_mask || step.word == "nearest" ? Filter::kNearest
         : step.word == "bicubic"          ? Filter::kBicubic
                                           : Filter::kBilinear;
}

Picture resized_by(const Step& step, const Picture& from, bool is_mask) {
  int height = static_cast<int>(step.numbers[0]), width = static_cast<int>(step.number(1, height));
  if (step.numbers.size() == 1) {  // the shorter side; the longer one is rounded down, as torchvision does
    const int64_t side = height, longer = side * std::max(from.height, from.width) / std::min(from.height, from.width);
    if (longer * side > kMostPixels) {
      fail_as(ErrorCode::kFile, from.width, " x ", from.height, " pixels become ", longer, " x ", side, " by ",
              step.text);
    }
    height = from.height <= from.width ? static_cast<int>(side) : static_cast<int>(longer);
    width = from.height <= from.width ? static_cast<int>(longer) : static_cast<int>(side);
  }
  return resized(from, height, width, filter_of(step, is_mask));
}

// As large as fits, in the middle of grey. Source of the rounding: Ultralytics, LetterBox.
Picture letterboxed_by(const Step& step, const Picture& from, bool is_mask) {
  const int height = static_cast<int>(step.numbers[0]), width = static_cast<int>(step.number(1, height));
  const double ratio = std::min(double(height) / from.height, double(width) / from.width);
  const auto scaled = [&](int size) { return std::max(1, static_cast<int>(std::nearbyint(size * ratio))); };
  const auto before = [](int space) { return static_cast<int>(std::nearbyint(space / 2.0 - 0.1)); };
  const Picture inner = resized(from, scaled(from.height), scaled(from.width), filter_of(step, is_mask));
  return cropped(inner, {-before(height - inner.height), -before(width - inner.width), height, width},
                 is_mask ? 0 : kLetterboxGrey);
}

// `place`: the part of the space that is above, or on the left; a half is rounded to even, as torchvision does.
int crop_start(int from, int to, double place) {
  if (to > from) return -((to - from) / 2);
  if (place == 0.5) return static_cast<int>(std::nearbyint((from - to) / 2.0));
  return std::min(static_cast<int>(place * (from - to + 1)), from - to);
}

Picture cropped_by(const Step& step, const Picture& from, std::pair<double, double> place) {
  const int height = static_cast<int>(step.numbers[0]), width = static_cast<int>(step.number(1, height));
  return cropped(
      from, {crop_start(from.height, height, place.first), crop_start(from.width, width, place.second), height, width});
}

// `place`: where a crop is, of the space that there is.
Picture moved_by(const Step& step, const Picture& from, bool is_mask, std::pair<double, double> place) {
  return step.name == "resize"      ? resized_by(step, from, is_mask)
         : step.name == "letterbox" ? letterboxed_by(step, from, is_mask)
                                    : cropped_by(step, from, place);
}

}  // namespace

Shape PicturePlan::row() const {
  if (!has_channel_axis) return {height, width};
  return is_hwc ? Shape{height, width, channels} : Shape{channels, height, width};
}

Picture PicturePlan::prepared(Picture picture, bool is_mask) const {
  if (!is_mask) {
    if (is_grey || channels == 1) picture = to_grey(picture);
    if (channels == 3) picture = to_rgb(picture);
  }
  for (size_t i = 0; i < fixed; ++i) picture = moved_by(geometry[i], picture, is_mask, {0.5, 0.5});
  return picture;
}

Picture PicturePlan::finished(const Picture& prepared, bool is_mask, const AugmentKey* key, int64_t sample) const {
  Picture picture;
  if (key && augment.crops_original()) {
    const Box box = augment.original_crop(prepared, *key, sample);
    picture = resized(prepared, box, height, width, is_mask ? Filter::kNearest : Filter::kBilinear);
  } else {
    picture = prepared;
    const auto place = key ? augment.crop_position(*key, sample) : std::pair(0.5, 0.5);
    for (size_t i = fixed; i < geometry.size(); ++i) picture = moved_by(geometry[i], picture, is_mask, place);
  }
  if (key) augment.change(&picture, is_mask, *key, sample);
  if (picture.height != height || picture.width != width) {
    fail_as(ErrorCode::kData, "it has ", picture.width, " x ", picture.height, " pixels, the input takes ", width,
            " x ", height, "; --preprocess 'resize(...), crop(...)' brings pictures to one size");
  }
  return picture;
}

void PicturePlan::write(const Picture& picture, const Box& erased, void* to) const {
  const int rows = height, columns = width, depth = channels;
  const size_t channel_stride = is_hwc ? 1 : static_cast<size_t>(rows) * static_cast<size_t>(columns);
  const size_t pixel_stride = is_hwc ? static_cast<size_t>(depth) : 1;
  const auto put = [&](auto* out, const auto& value) {
    for (int y = 0; y < rows; ++y) {
      const bool in_rows = y >= erased.top && y < erased.top + erased.height;
      const uint8_t* from = picture.at(y, 0);
      for (int c = 0; c < depth; ++c) {
        auto* place = out + static_cast<size_t>(c) * channel_stride +
                      static_cast<size_t>(y) * static_cast<size_t>(columns) * pixel_stride;
        const int source = is_bgr ? depth - 1 - c : c;
        for (int x = 0; x < columns; ++x)
          place[static_cast<size_t>(x) * pixel_stride] = value(c, from[x * depth + source]);
        for (int x = erased.left; in_rows && x < erased.left + erased.width; ++x)
          place[static_cast<size_t>(x) * pixel_stride] = 0;
      }
    }
  };
  if (is_bytes) return put(static_cast<uint8_t*>(to), [](int, uint8_t v) { return v; });
  const auto put_rescaled = [&]<typename T>(T* out) {
    T tables[3][256];
    for (int c = 0; c < depth; ++c) {
      const size_t of = values.scale.size() == 1 ? 0 : static_cast<size_t>(c);
      // As apply_rescaling computes it, so that pictures in files and in arrays are equal in bits.
      const auto scale = static_cast<T>(values.scale[of]), shift = static_cast<T>(values.shift[of]);
      for (int v = 0; v < 256; ++v) tables[c][v] = static_cast<T>(v) * scale + shift;
    }
    put(out, [&](int c, uint8_t v) { return tables[c][v]; });
  };
  if (is_double) return put_rescaled(static_cast<double*>(to));
  put_rescaled(static_cast<float*>(to));
}

PicturePlan picture_plan(const InputSpec& spec, bool are_files, const Augment& augment, Preprocess* preprocess,
                         std::vector<std::string>* notes) {
  PicturePlan plan;
  plan.augment = augment;
  plan.is_bytes = !is_float(spec.type.dtype);
  plan.is_double = spec.type.dtype == DType::kDouble;
  std::vector<Step> steps = preprocess->steps(spec.name);
  auto [height, width] = read_layout(spec, steps, &plan, notes);
  const auto written = [&] {
    std::vector<Step> geometry;
    std::copy_if(steps.begin(), steps.end(), std::back_inserter(geometry), is_geometry);
    return geometry;
  };
  const std::pair<int, int> made = size_after(written());
  if (made.first != 0) std::tie(height, width) = made;
  const Step* random = augment.find("random_resized_crop");
  const int random_height = random ? static_cast<int>(random->number(0, height)) : height;
  const int random_width = random ? static_cast<int>(random->number(1, random->number(0, width))) : width;
  if (height == 0 || width == 0) std::tie(height, width) = std::pair(random_height, random_width);
  if (height == 0 || width == 0) {
    fail_as(ErrorCode::kUsage, "the input '", spec.name, "' is ", to_string(spec.type),
            ", which leaves the size of pictures open: say it, as in --preprocess 'resize(256), crop(224)'");
  }
  if (random && (random_height != height || random_width != width)) {
    fail_as(ErrorCode::kUsage, "--augment: ", random->text, " does not make the ", height, " x ", width,
            " pixels that the input '", spec.name, "' takes");
  }
  plan.height = height;
  plan.width = width;
  if (are_files) {
    add_defaults(spec, plan, height, width, &steps, notes);
    preprocess->set_steps(spec.name, steps);
  }
  plan.geometry = written();
  const auto crop = std::find_if(plan.geometry.begin(), plan.geometry.end(), is_crop);
  plan.fixed = augment.crops_original()      ? 0
               : augment.find("random_crop") ? static_cast<size_t>(crop - plan.geometry.begin())
                                             : plan.geometry.size();
  plan.values = preprocess->rescaling(spec.name);
  const size_t channels = plan.values.scale.size();
  if (channels != 1 && channels != static_cast<size_t>(plan.channels)) {
    fail_as(ErrorCode::kUsage, "--preprocess: '", spec.name, "' has ", plan.channels, " channel",
            plan.channels == 1 ? "" : "s", ", its normalization ", channels);
  }
  if (plan.is_bytes && (!plan.values.is_identity() || augment.mixes())) {
    fail_as(ErrorCode::kUsage, "'", spec.name, "' takes bytes, which are neither scaled nor mixed");
  }
  return plan;
}

}  // namespace onnx_train
