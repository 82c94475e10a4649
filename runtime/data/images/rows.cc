#include "runtime/data/images/rows.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "kernels/host.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/table_metadata.h"
#include "runtime/data/class_names.h"
#include "runtime/data/images/boxes.h"
#include "runtime/data/images/damaged.h"
#include "runtime/data/images/plan.h"
#include "runtime/data/images/store.h"

namespace onnx_train {
namespace {

// What the readers of one dataset share.
class Samples {
 public:
  Samples(std::unique_ptr<const PictureStore> store, const PicturePlan& how)
      : plan(how),
        store_(std::move(store)),
        budget_(store_->most_bytes()),
        kept_(budget_ > 0 ? 2 * static_cast<size_t>(store_->size()) : 0),
        sizes_(static_cast<size_t>(store_->size())) {
    constexpr size_t kMost = size_t{1} << 30;
    const bool has_one_size = plan.fixed == plan.geometry.size() && !plan.geometry.empty();
    if (budget_ > 0 && has_one_size) budget_ = static_cast<size_t>(store_->size() * plan.size());
    budget_ = std::min({budget_, kMost, available_host_memory() / 4});
  }

  int64_t size() const { return store_->size(); }
  size_t memory() const { return budget_; }
  const PictureStore& store() const { return *store_; }

  Picture make(int64_t sample, bool is_mask, const AugmentKey* key) const {
    const std::shared_ptr<const Picture> base = prepared(sample, is_mask);
    return named(sample, is_mask, [&] { return plan.finished(*base, is_mask, key, sample); });
  }
  Augment::Mix mix(int64_t sample, const AugmentKey* key) const {
    if (!key || !plan.augment.mixes()) return {sample, 1, {0, 0, 0, 0}};
    return plan.augment.mix(size(), plan.height, plan.width, *key, sample);
  }

  const PicturePlan plan;

 private:
  std::shared_ptr<const Picture> prepared(int64_t sample, bool is_mask) const {
    std::shared_ptr<const Picture>* place = nullptr;
    if (!kept_.empty()) {
      place = &kept_[2 * static_cast<size_t>(sample) + (is_mask ? 1 : 0)];
      const std::lock_guard lock(mutex_);
      if (*place) return *place;
    }
    Picture stored = store_->read(sample, is_mask);
    check_equal_size(sample, is_mask, stored);
    auto made = std::make_shared<const Picture>(
        named(sample, is_mask, [&] { return plan.prepared(std::move(stored), is_mask); }));
    if (!place) return made;
    const std::lock_guard lock(mutex_);
    if (!*place && bytes_ + made->bytes.size() <= budget_) {
      *place = made;
      bytes_ += made->bytes.size();
    }
    return made;
  }

  // A picture and its mask are moved alike only if they have one size. The first of them that is read records its own.
  void check_equal_size(int64_t sample, bool is_mask, const Picture& picture) const {
    const uint64_t size = static_cast<uint64_t>(picture.height) << 32 | static_cast<uint64_t>(picture.width);
    uint64_t other = 0;
    if (sizes_[static_cast<size_t>(sample)].compare_exchange_strong(other, size) || other == size) return;
    fail_as(ErrorCode::kData, store_->describe(sample, is_mask), " has ", picture.width, " x ", picture.height,
            " pixels, ", store_->describe(sample, !is_mask), " ", other & 0xffffffff, " x ", other >> 32);
  }

  // f(), whose errors get the name of the file.
  template <typename F>
  Picture named(int64_t sample, bool is_mask, const F& f) const {
    try {
      return f();
    } catch (const Error& error) {
      fail_as(error.code(), store_->describe(sample, is_mask), ": ", error.what());
    }
  }

  const std::unique_ptr<const PictureStore> store_;
  size_t budget_;  // bytes
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const Picture>> kept_;  // pictures and masks by turns; empty: nothing is kept
  mutable std::vector<std::atomic<uint64_t>> sizes_;
  mutable size_t bytes_ = 0;
};

class SampleReader : public RowReader {
 public:
  SampleReader(std::shared_ptr<const Samples> samples, DType dtype, const Shape& row)
      : RowReader({dtype, with_samples(*samples, row)}), samples_(std::move(samples)) {}
  std::string describe(int64_t row) const override { return samples_->store().describe(row, false); }
  std::string identity() const override { return samples_->store().identity(); }
  size_t memory() const override { return 0; }
  bool is_quick() const override { return false; }

 protected:
  const std::shared_ptr<const Samples> samples_;

 private:
  static Shape with_samples(const Samples& samples, Shape row) {
    row.insert(row.begin(), samples.size());
    return row;
  }
};

class PictureReader : public SampleReader {
 public:
  explicit PictureReader(const std::shared_ptr<const Samples>& samples)
      : SampleReader(samples, type_of(samples->plan), samples->plan.row()) {}
  size_t memory() const override { return samples_->memory(); }

  void read(int64_t row, const AugmentKey* key, void* to) const override {
    const Augment::Mix mix = samples_->mix(row, key);
    write(row, key, to);
    if (mix.part == 1) return;
    if (samples_->plan.is_double) return add_partner(mix, key, static_cast<double*>(to));
    add_partner(mix, key, static_cast<float*>(to));
  }

 private:
  static DType type_of(const PicturePlan& plan) {
    return plan.is_bytes ? DType::kUint8 : plan.is_double ? DType::kDouble : DType::kFloat;
  }
  // Mixes the sample with its partner.
  template <typename T>
  void add_partner(const Augment::Mix& mix, const AugmentKey* key, T* out) const {
    const PicturePlan& plan = samples_->plan;
    std::vector<T> other(static_cast<size_t>(plan.size()));
    write(mix.partner, key, other.data());
    if (mix.box.height == 0) {
      const auto part = static_cast<T>(mix.part);
      for (size_t i = 0; i < other.size(); ++i) out[i] = part * out[i] + (1 - part) * other[i];
      return;
    }
    for (int64_t i = 0; i < plan.size(); ++i) {
      const int64_t pixel = plan.is_hwc ? i / plan.channels : i % (int64_t{plan.height} * plan.width);
      const int64_t y = pixel / plan.width - mix.box.top, x = pixel % plan.width - mix.box.left;
      if (y >= 0 && y < mix.box.height && x >= 0 && x < mix.box.width) out[i] = other[static_cast<size_t>(i)];
    }
  }

  void write(int64_t row, const AugmentKey* key, void* to) const {
    const PicturePlan& plan = samples_->plan;
    const Box erased = key ? plan.augment.erased(plan.height, plan.width, *key, row) : Box{0, 0, 0, 0};
    plan.write(samples_->make(row, false, key), erased, to);
  }
};

class MaskReader : public SampleReader {
 public:
  MaskReader(const std::shared_ptr<const Samples>& samples, const PictureFiles& files)
      : SampleReader(samples, DType::kInt64, {samples->plan.height, samples->plan.width}),
        values_(files.mask_values),
        is_checked_(are_few_bytes(files)) {}
  std::string describe(int64_t row) const override { return samples_->store().describe(row, true); }

  void read(int64_t row, const AugmentKey* key, void* to) const override {
    const Picture mask = samples_->make(row, true, key);
    write_mask(values_, mask, describe(row), static_cast<int64_t*>(to));
  }
  bool is_checked() const override { return is_checked_; }
  std::string values_option() const override { return "--mask-values"; }

 private:
  const std::vector<uint16_t> values_;
  const bool is_checked_;
};

// Boxes follow a picture of the same size without channels, which is moved as a mask is.
class BoxReader : public SampleReader {
 public:
  // `order`: what the files' labels are to the model; empty: the same.
  BoxReader(std::shared_ptr<const Samples> samples, std::shared_ptr<const BoxFile> file, std::vector<int64_t> order,
            int64_t rows)
      : SampleReader(std::move(samples), DType::kFloat, {rows, kBoxNumbers}),
        file_(std::move(file)),
        order_(std::move(order)),
        rows_(rows) {}

  void read(int64_t row, const AugmentKey* key, void* to) const override {
    const Picture picture = samples_->make(row, true, key);
    auto* out = static_cast<float*>(to);
    for (int64_t i = 0; i < rows_ * kBoxNumbers; ++i) out[i] = i % kBoxNumbers == 0 ? -1.f : 0.f;
    for (const LabelledBox& box : file_->boxes[static_cast<size_t>(row)]) {
      const auto placed = placed_box(box, picture);
      if (!placed) continue;
      *out++ = static_cast<float>(order_.empty() ? box.label : order_[static_cast<size_t>(box.label)]);
      for (const double x : {placed->left, placed->top, placed->right, placed->bottom}) *out++ = static_cast<float>(x);
    }
  }

 private:
  const std::shared_ptr<const BoxFile> file_;
  const std::vector<int64_t> order_;
  const int64_t rows_;
};

// The class as probabilities: 1 for it, 0 for all others; of mixed samples the parts.
class ClassReader : public SampleReader {
 public:
  ClassReader(std::shared_ptr<const Samples> samples, std::vector<int64_t> labels, int64_t classes)
      : SampleReader(std::move(samples), DType::kFloat, {classes}), labels_(std::move(labels)), classes_(classes) {}

  void read(int64_t row, const AugmentKey* key, void* to) const override {
    const Augment::Mix mix = samples_->mix(row, key);
    auto* out = static_cast<float*>(to);
    std::fill_n(out, classes_, 0.f);
    out[labels_[static_cast<size_t>(row)]] += static_cast<float>(mix.part);
    if (mix.part != 1) out[labels_[static_cast<size_t>(mix.partner)]] += static_cast<float>(1 - mix.part);
  }

 private:
  const std::vector<int64_t> labels_;
  const int64_t classes_;
};

bool takes_probabilities(const InputSpec& target) {
  if (!is_float(target.type.dtype) || !target.type.has_rank() || target.type.rank() != 2) return false;
  const Dim& classes = (*target.type.dims)[1];
  return !classes.known() || classes.value() > 1;
}

Tensor labels_tensor(const std::vector<int64_t>& labels) {
  return Tensor::of<int64_t>({static_cast<int64_t>(labels.size())}, labels);
}

// Several numbers for each picture.
Tensor targets_tensor(const PictureFiles& files, const std::vector<std::string>& classes) {
  const std::vector<std::vector<float>> rows = targets_by(files, classes);
  std::vector<float> all;
  for (const std::vector<float>& row : rows) all.insert(all.end(), row.begin(), row.end());
  return Tensor::of<float>({static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].size())}, all);
}

const InputSpec* spec_of(const std::vector<InputSpec>& inputs, const std::string& name) {
  const auto found =
      std::find_if(inputs.begin(), inputs.end(), [&](const InputSpec& spec) { return spec.name == name; });
  return found == inputs.end() ? nullptr : &*found;
}

// Adds the targets of the samples: masks, classes, or classes as probabilities.
void add_targets(const std::shared_ptr<const Samples>& samples, std::vector<int64_t> labels, const PictureFiles* files,
                 size_t num_classes, const std::vector<InputSpec>& inputs, DataArrays* data) {
  const InputSpec* target = spec_of(inputs, first_label(inputs));
  const bool mixes = samples->plan.augment.mixes();
  if (mixes && (!target || labels.empty() || !takes_probabilities(*target))) {
    fail_as(ErrorCode::kUsage, "--augment: mixup and cutmix mix classes, which the target ",
            target ? concat("'", target->name, "', ", to_string(target->type), ", does") : std::string("does"),
            " not take: build the model with --loss 'cross_entropy(probabilities=true)', and give data with a class "
            "for each picture");
  }
  if (!target) return;
  if (files && !files->masks.empty()) {
    if (size_of(target->type.dtype) == 1)
      fail_as(ErrorCode::kData, "the target '", target->name, "' is ", to_string(target->type), "; masks need 16 bits");
    data->arrays[target->name] = std::make_shared<MaskReader>(samples, *files);
  } else if (!labels.empty() && takes_probabilities(*target)) {
    const Dim& dim = (*target->type.dims)[1];
    const int64_t most = *std::max_element(labels.begin(), labels.end());
    const int64_t least = *std::min_element(labels.begin(), labels.end());
    const int64_t classes = dim.known() ? dim.value() : std::max(most + 1, static_cast<int64_t>(num_classes));
    if (least < 0 || most >= classes) {
      fail_as(ErrorCode::kData, "the data has the class ", least < 0 ? least : most, "; the target '", target->name,
              "', ", to_string(target->type), ", takes 0 to ", classes - 1);
    }
    data->arrays[target->name] = std::make_shared<ClassReader>(samples, std::move(labels), classes);
  } else if (!labels.empty()) {
    data->arrays[target->name] = labels_tensor(labels);
  }
}

void add_boxes(const std::shared_ptr<const Samples>& samples, const PictureFiles& files,
               const std::vector<std::string>& classes, const std::vector<InputSpec>& inputs, DataArrays* data) {
  if (samples->plan.augment.mixes()) {
    fail_as(ErrorCode::kUsage, "--augment: mixup and cutmix mix classes; ", files.boxes->path, " has boxes");
  }
  const std::string label = first_label(inputs);
  if (label.empty()) return;
  const InputSpec* target = box_target(inputs);
  if (!target) {
    fail_as(ErrorCode::kData, files.boxes->path, " has boxes, which the target '", label, "', ",
            to_string(spec_of(inputs, label)->type),
            ", does not take: build the model with a loss that reads float[batch, "
            "boxes, 5], such as models/losses/yolo.onnx");
  }
  data->arrays[target->name] =
      std::make_shared<BoxReader>(samples, files.boxes, label_order(files, classes), box_rows(files, *target));
}

// `classes` are the names of the model's classes, if it has some.
void add_files(const std::shared_ptr<const PictureFiles>& files, const std::vector<InputSpec>& inputs,
               const std::vector<std::string>& classes, const Augment& augment, Preprocess* preprocess,
               DataArrays* data) {
  const InputSpec* spec = spec_of(inputs, first_input(inputs));
  if (!spec) fail_as(ErrorCode::kData, files->root, " holds pictures, but the model has no input for them");
  const PicturePlan plan = picture_plan(*spec, /*are_files=*/true, augment, preprocess, &data->notes);
  const auto samples = std::make_shared<const Samples>(file_store(files), plan);
  data->arrays[spec->name] = std::make_shared<PictureReader>(samples);
  const std::vector<std::string>& names = classes.empty() ? files->classes : classes;
  if (!names.empty()) data->metadata[kClassNames] = classes_to_json(names);
  data->notes.insert(data->notes.end(), files->notes.begin(), files->notes.end());
  if (files->boxes) return add_boxes(samples, *files, classes, inputs, data);
  const bool has_target = !first_label(inputs).empty();
  if (has_target && !files->targets.empty()) {
    const InputSpec& target = *spec_of(inputs, first_label(inputs));
    if (!files->classes.empty() && !is_float(target.type.dtype)) {
      fail_as(ErrorCode::kData, files->root, " has several classes for a picture, and the target '", target.name, "', ",
              to_string(target.type), ", takes one: build with --loss bce_with_logits");
    }
    data->arrays[first_label(inputs)] = targets_tensor(*files, names);
    return;
  }
  std::vector<int64_t> labels = has_target ? labels_by(*files, classes) : std::vector<int64_t>();
  if (has_target && files->classes.empty() && labels != files->labels) {
    data->notes.push_back(concat(
        files->root,
        ": its numbers are names of the model's classes, whose order is another one: ", classes_to_json(classes)));
  }
  add_targets(samples, std::move(labels), files.get(), names.size(), inputs, data);
}

// Arrays of bytes that are preprocessed or augmented as pictures.
bool add_arrays(const std::vector<InputSpec>& inputs, const Augment& augment, Preprocess* preprocess,
                DataArrays* data) {
  bool augments = false;
  const std::string first = first_input(inputs);
  for (const InputSpec& spec : inputs) {
    const Rows* found = data->find(spec.name);
    if (spec.from_loss || !found || found->reader()) continue;
    const Tensor stored = found->stored();
    const std::vector<Step>& steps = preprocess->steps(spec.name);
    const bool is_augmented = !augment.empty() && spec.name == first;
    if (!is_augmented && std::none_of(steps.begin(), steps.end(), is_picture_step)) continue;
    if (stored.dtype() != DType::kUint8) {
      fail_as(ErrorCode::kData, "data '", spec.name, "' is ", name(stored.dtype()), to_string(stored.shape()),
              "; --preprocess and --augment take pictures in files, or arrays of their bytes (uint8)");
    }
    auto store = array_store(spec.name, stored);
    const PicturePlan plan =
        picture_plan(spec, /*are_files=*/false, is_augmented ? augment : Augment(), preprocess, &data->notes);
    const auto samples = std::make_shared<const Samples>(std::move(store), plan);
    data->arrays[spec.name] = std::make_shared<PictureReader>(samples);
    if (plan.values.is_identity() && !plan.is_bytes) {
      data->notes.push_back(concat("'", spec.name,
                                   "' holds bytes, which enter the network as 0 to 255: scale(1/255) in ",
                                   "--preprocess makes them 0 to 1"));
    }
    if (!is_augmented) continue;
    augments = true;
    const Rows* target = data->find(first_label(inputs));
    if (!target || target->reader()) continue;
    const Tensor labels = target->stored();
    if (labels.shape().size() > 2)
      fail_as(ErrorCode::kUsage, "--augment: masks in arrays are not moved: give folders images/ and masks/");
    if (augment.mixes() && is_integer(labels.dtype()) && labels.shape().size() == 1) {
      add_targets(samples, labels.cast(DType::kInt64).to_ints(), nullptr, 0, inputs, data);
    } else if (augment.mixes()) {
      fail_as(ErrorCode::kUsage, "--augment: mixup and cutmix need classes as integers, one for each sample");
    }
  }
  return augments;
}

}  // namespace

void add_pictures(const std::vector<InputSpec>& inputs, const std::vector<std::string>& classes,
                  const std::string& augment_text, bool trains, Preprocess* preprocess, DataArrays* data) {
  const Augment augment(augment_text);
  if (const auto files = data->pictures) {
    const bool known = !trains || knows_classes(*files, classes);
    if (!known)
      data->notes.push_back("the classes of the data take the place of those that the model was trained with");
    return add_files(files, inputs, known ? classes : std::vector<std::string>(), augment, preprocess, data);
  }
  if (!classes.empty()) data->metadata[kClassNames] = classes_to_json(classes);
  if (!add_arrays(inputs, augment, preprocess, data) && !augment.empty()) {
    fail_as(ErrorCode::kUsage, "--augment changes pictures, and the data has none");
  }
}

}  // namespace onnx_train
