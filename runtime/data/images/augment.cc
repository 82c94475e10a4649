#include "runtime/data/images/augment.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "onnx_passes/ir/error.h"
#include "runtime/data/images/transform.h"

namespace onnx_train {
namespace {

const StepRow kAugmentSteps[] = {
    {"random_resized_crop", "random_resized_crop or random_resized_crop(224, scale=(0.08, 1), ratio=(3/4, 4/3))", 0, 2,
     1, 16384, true, "", "scale ratio"},
    {"random_crop", "random_crop", 0, 0, 0, 0},
    {"pad_crop", "pad_crop(4)", 1, 1, 1, 4096, true},
    {"flip", "flip or flip(0.5)", 0, 1, 0, 1},
    {"vflip", "vflip or vflip(0.5)", 0, 1, 0, 1},
    {"rotate", "rotate(15)", 1, 1, 0, 180},
    {"jitter", "jitter(0.4) or jitter(0.4, 0.4, 0.4, 0.1)", 1, 4, 0, 1},
    {"erase", "erase(0.25)", 1, 1, 0, 1},
    {"mixup", "mixup(0.2)", 1, 1, 1e-3, 1e3},
    {"cutmix", "cutmix(1.0)", 1, 1, 1e-3, 1e3},
    {"randaugment", "randaugment or randaugment(2, 9)", 0, 2, 0, 30, true},
};

using Random = SplitMix64;

void move_picture(Picture* picture, bool is_mask, const AffineMap& map) {
  *picture = moved(*picture, map, is_mask ? Filter::kNearest : Filter::kBilinear);
}

void maybe_flip(const Step& step, Picture* picture, bool, Random* random) {
  if (random->uniform() < step.number(0, 0.5)) flip_left_right(picture);
}

void maybe_flip_vertically(const Step& step, Picture* picture, bool, Random* random) {
  if (random->uniform() < step.number(0, 0.5)) flip_top_bottom(picture);
}

void rotate(const Step& step, Picture* picture, bool is_mask, Random* random) {
  move_picture(picture, is_mask, rotation(*picture, random->uniform(-step.numbers[0], step.numbers[0])));
}

void pad_and_crop(const Step& step, Picture* picture, bool, Random* random) {
  const int pad = static_cast<int>(step.numbers[0]), top = random->integer(-pad, pad);
  *picture = cropped(*picture, {top, random->integer(-pad, pad), picture->height, picture->width});
}

void jitter(const Step& step, Picture* picture, bool is_mask, Random* random) {
  if (is_mask) return;
  int order[] = {0, 1, 2, 3};
  for (int i = 3; i > 0; --i) std::swap(order[i], order[random->integer(0, i)]);
  double factors[4];
  for (int i = 0; i < 3; ++i) {
    const double most = step.number(static_cast<size_t>(i), step.numbers[0]);
    factors[i] = random->uniform(1 - most, 1 + most);
  }
  const double most_turn = std::min(step.number(3, 0), 0.5);
  factors[3] = random->uniform(-most_turn, most_turn);
  void (*const changes[])(Picture*, double) = {change_brightness, change_contrast, change_saturation, change_hue};
  for (const int which : order) {
    if (which < 3 || most_turn > 0) changes[which](picture, factors[which]);
  }
}

// ---- randaugment: `strength` is 0 to 1, `sign` -1 or 1

void posterize(Picture* picture, double strength) {
  const int bits = 8 - static_cast<int>(std::round(strength * 4));
  uint8_t table[256];
  for (int v = 0; v < 256; ++v) table[v] = static_cast<uint8_t>(v & ~((1 << (8 - bits)) - 1));
  map_values(picture, table);
}

void solarize(Picture* picture, double strength) {
  const double threshold = 255 * (1 - strength);
  uint8_t table[256];
  for (int v = 0; v < 256; ++v) table[v] = static_cast<uint8_t>(v < threshold ? v : 255 - v);
  map_values(picture, table);
}

struct RandomChange {
  bool moves;  // pixels, those of masks, too
  std::function<void(Picture*, bool is_mask, double strength, double sign)> change;
};

AffineMap shear(double x, double y) { return {1, x, 0, y, 1, 0}; }  // the top left corner stays, as in torchvision

const std::vector<RandomChange>& random_changes() {
  constexpr double kMostShear = 0.3, kMostShift = 150.0 / 331, kMostDegrees = 30, kMostFactor = 0.9;
  using P = Picture*;
  static const std::vector<RandomChange> kChanges = {
      {true, [](P, bool, double, double) {}},
      {true, [](P p, bool mask, double s, double sign) { move_picture(p, mask, shear(sign * s * kMostShear, 0)); }},
      {true, [](P p, bool mask, double s, double sign) { move_picture(p, mask, shear(0, sign * s * kMostShear)); }},
      {true,
       [](P p, bool mask, double s, double sign) {
         move_picture(p, mask, {1, 0, std::trunc(sign * s * kMostShift * p->width), 0, 1, 0});
       }},
      {true,
       [](P p, bool mask, double s, double sign) {
         move_picture(p, mask, {1, 0, 0, 0, 1, std::trunc(sign * s * kMostShift * p->height)});
       }},
      {true,
       [](P p, bool mask, double s, double sign) { move_picture(p, mask, rotation(*p, sign * s * kMostDegrees)); }},
      {false, [](P p, bool, double s, double sign) { change_brightness(p, 1 + sign * s * kMostFactor); }},
      {false, [](P p, bool, double s, double sign) { change_saturation(p, 1 + sign * s * kMostFactor); }},
      {false, [](P p, bool, double s, double sign) { change_contrast(p, 1 + sign * s * kMostFactor); }},
      {false, [](P p, bool, double s, double sign) { change_sharpness(p, 1 + sign * s * kMostFactor); }},
      {false, [](P p, bool, double s, double) { posterize(p, s); }},
      {false, [](P p, bool, double s, double) { solarize(p, s); }},
      {false, [](P p, bool, double, double) { stretch_contrast(p); }},
      {false, [](P p, bool, double, double) { equalize(p); }},
  };
  return kChanges;
}

void randaugment(const Step& step, Picture* picture, bool is_mask, Random* random) {
  const std::vector<RandomChange>& changes = random_changes();
  const double strength = std::min(step.number(1, 9) / 30, 1.0);
  for (int i = 0; i < static_cast<int>(step.number(0, 2)); ++i) {
    const RandomChange& chosen = changes[random->below(changes.size())];
    const double sign = random->below(2) == 0 ? -1 : 1;
    if (chosen.moves || !is_mask) chosen.change(picture, is_mask, strength, sign);
  }
}

struct ChangeRow {
  const char* step;
  void (*change)(const Step&, Picture*, bool is_mask, Random*);
};
const ChangeRow kChangeRows[] = {{"flip", maybe_flip}, {"vflip", maybe_flip_vertically},
                                 {"rotate", rotate},   {"pad_crop", pad_and_crop},
                                 {"jitter", jitter},   {"randaugment", randaugment}};

// A box of `area` pixels, `ratio` times as wide as high, at a random place; no height where it does not fit.
Box random_box(double area, double ratio, int height, int width, Random* random) {
  const int w = static_cast<int>(std::round(std::sqrt(area * ratio)));
  const int h = static_cast<int>(std::round(std::sqrt(area / ratio)));
  if (w < 1 || h < 1 || w > width || h > height) return {0, 0, 0, 0};
  const int top = random->integer(0, height - h);
  return {top, random->integer(0, width - w), h, w};
}

double log_uniform(double low, double high, Random* random) {
  return std::exp(random->uniform(std::log(low), std::log(high)));
}

constexpr int kTries = 10;

}  // namespace

std::vector<std::string> augment_step_names() { return step_names(kAugmentSteps); }

Augment::Augment(const std::string& text) {
  const std::string option = "--augment";
  if (text.empty() || text == "none") return;
  steps_ = read_steps(option, text, kAugmentSteps);
  for (const Step& step : steps_) {
    for (const auto& [key, range] : step.named) {
      const double most = key == "scale" ? 1 : 1e3;
      if (range.size() == 2 && range[0] > 0 && range[0] <= range[1] && range[1] <= most) continue;
      fail_as(ErrorCode::kUsage, option, ": ", key, " of ", step.text, " is (LOW, HIGH), above 0, HIGH at most ",
              number_text(most));
    }
    if (&step != find(step.name)) fail_as(ErrorCode::kUsage, option, ": ", step.name, " is given twice");
  }
  if (find("random_resized_crop") && find("random_crop")) {
    fail_as(ErrorCode::kUsage, option, ": random_resized_crop and random_crop exclude each other");
  }
}

SplitMix64 Augment::stream(const Step& step, const AugmentKey& key, int64_t sample) const {
  const auto place = static_cast<uint64_t>(&step - steps_.data());
  return {key.seed, static_cast<uint64_t>(key.epoch), static_cast<uint64_t>(sample), place};
}

Box Augment::original_crop(const Picture& picture, const AugmentKey& key, int64_t sample) const {
  const Step& step = *find("random_resized_crop");
  const auto range = [&](const char* name, double low, double high) {
    const auto given = step.named.find(name);
    return given == step.named.end() ? std::pair(low, high) : std::pair(given->second[0], given->second[1]);
  };
  const auto [least, most] = range("scale", 0.08, 1);
  const auto [narrow, wide] = range("ratio", 3.0 / 4, 4.0 / 3);
  Random random = stream(step, key, sample);
  const int height = picture.height, width = picture.width;
  for (int i = 0; i < kTries; ++i) {
    const double area = random.uniform(least, most) * height * width;
    const Box box = random_box(area, log_uniform(narrow, wide, &random), height, width, &random);
    if (box.height > 0) return box;
  }
  const double ratio = static_cast<double>(width) / height;  // the largest part in the middle
  const int w = ratio > wide ? std::max(1, static_cast<int>(std::round(height * wide))) : width;
  const int h = ratio < narrow ? std::max(1, static_cast<int>(std::round(width / narrow))) : height;
  return {(height - h) / 2, (width - w) / 2, h, w};
}

std::pair<double, double> Augment::crop_position(const AugmentKey& key, int64_t sample) const {
  const Step* step = find("random_crop");
  if (!step) return {0.5, 0.5};
  Random random = stream(*step, key, sample);
  const double y = random.uniform();
  return {y, random.uniform()};
}

void Augment::change(Picture* picture, bool is_mask, const AugmentKey& key, int64_t sample) const {
  for (const Step& step : steps_) {
    Random random = stream(step, key, sample);
    for (const ChangeRow& row : kChangeRows) {
      if (step.name == row.step) row.change(step, picture, is_mask, &random);
    }
  }
}

Box Augment::erased(int height, int width, const AugmentKey& key, int64_t sample) const {
  const Step* step = find("erase");
  if (!step) return {0, 0, 0, 0};
  Random random = stream(*step, key, sample);
  if (random.uniform() >= step->numbers[0]) return {0, 0, 0, 0};
  for (int i = 0; i < kTries; ++i) {
    const double area = random.uniform(0.02, 0.33) * height * width;
    const Box box = random_box(area, log_uniform(0.3, 3.3, &random), height, width, &random);
    if (box.height > 0) return box;
  }
  return {0, 0, 0, 0};
}

Augment::Mix Augment::mix(int64_t samples, int height, int width, const AugmentKey& key, int64_t sample) const {
  const Step *mixup = find("mixup"), *cutmix = find("cutmix");
  Random random = stream(mixup ? *mixup : *cutmix, key, sample);
  const auto partner = static_cast<int64_t>(random.below(static_cast<uint64_t>(samples)));
  const Step& step = mixup && cutmix ? (random.below(2) == 0 ? *mixup : *cutmix) : mixup ? *mixup : *cutmix;
  const double part = random.beta(step.numbers[0], step.numbers[0]);
  if (&step == mixup) return {partner, part, {0, 0, 0, 0}};
  const double side = std::sqrt(1 - part);
  const int h = static_cast<int>(height * side), w = static_cast<int>(width * side);
  const int y = random.integer(0, height - 1), x = random.integer(0, width - 1);  // the middle
  const int top = std::max(y - h / 2, 0), left = std::max(x - w / 2, 0);
  const Box box{top, left, std::min(y + h / 2, height) - top, std::min(x + w / 2, width) - left};
  const double covered = static_cast<double>(box.height) * box.width / (static_cast<double>(height) * width);
  return {partner, box.height > 0 && box.width > 0 ? 1 - covered : 1, box.width > 0 ? box : Box{0, 0, 0, 0}};
}

}  // namespace onnx_train
