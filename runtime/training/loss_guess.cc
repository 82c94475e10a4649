#include "runtime/training/loss_guess.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/loss/probabilities.h"
#include "onnx_passes/text/expression.h"
#include "runtime/data/chats/preferences.h"
#include "runtime/data/files/tokens.h"
#include "runtime/data/images/decode.h"

namespace onnx_train {
namespace {

constexpr const char* kLabels = "labels";  // the name of a target that an expression leaves out
constexpr const char* kAdvice = "; name a loss: --loss EXPR (docs/losses.md)";

// An array beside the model's inputs.
struct Target {
  std::string name;
  DType dtype;
  Shape shape;
  bool zeros_and_ones = false;
  bool one_hot = false;  // of these a single one along the axis of classes
};

// Whether a few masks, from all parts of the data, hold 0 and one other value: 255 is refused by the check of the data,
// which names the way out. What cannot be read is said later.
bool are_binary(const PictureFiles& files) {
  constexpr size_t kLooked = 16;
  std::set<int64_t> values;
  for (size_t i = 0; i < std::min(kLooked, files.masks.size()); ++i) {
    const std::string path = files.folder + files.masks[i * files.masks.size() / std::min(kLooked, files.masks.size())];
    try {
      const Picture mask = decode_mask(path);
      std::vector<int64_t> classes(mask.bytes.size() / kMaskChannels);
      write_mask(files.mask_values, mask, path, classes.data());
      values.insert(classes.begin(), classes.end());
    } catch (const Error&) {
      return false;
    }
  }
  return values.size() <= 2 && values.count(0) > 0;
}

constexpr int64_t kMostLooked = int64_t{1} << 20;  // elements of a target

bool holds_zeros_and_ones(const Tensor& values) {
  for (int64_t i = 0; i < std::min(values.size(), kMostLooked); ++i) {
    if (const double value = values.at(i); value != 0 && value != 1) return false;
  }
  return true;
}

// Where cross_entropy looks for the classes.
size_t axis_of_classes(size_t rank) { return rank == 3 ? 2 : 1; }

// Whether zeros and ones have a single one in each place, along the axis of classes.
bool is_one_hot(const Tensor& values) {
  const Shape& shape = values.shape();
  if (shape.size() < 2) return false;
  const size_t axis = axis_of_classes(shape.size());
  const int64_t classes = shape[axis],
                inner = num_elements(Shape(shape.begin() + static_cast<std::ptrdiff_t>(axis) + 1, shape.end()));
  if (classes < 2 || inner == 0) return false;
  const int64_t blocks = std::min(values.size(), kMostLooked) / (classes * inner);
  for (int64_t i = 0; i < blocks * inner; ++i) {
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += values.at(i / inner * classes * inner + c * inner + i % inner);
    if (sum != 1) return false;
  }
  return blocks > 0;
}

Target target_of(const std::string& name, const Tensor& tensor) {
  const bool is_number = is_float(tensor.dtype()) || is_integer(tensor.dtype()) || tensor.dtype() == DType::kBool;
  const Tensor values = reinterpret_cast<uintptr_t>(tensor.data()) % 16 == 0 ? tensor : tensor.clone();
  const bool zeros_and_ones = is_number && holds_zeros_and_ones(values);
  return {name, tensor.dtype(), tensor.shape(), zeros_and_ones, zeros_and_ones && is_one_hot(values)};
}

class Guess {
 public:
  Guess(const Model& forward, std::string what) : model_(forward), what_(std::move(what)) {
    for (const InputSpec& spec : entry_inputs(forward, Entry::kPredict)) inputs_.push_back(spec);
    output_ = default_prediction(*forward.graph);
    if (!output_)
      fail_as(ErrorCode::kNoLossFound, "none of the model's outputs is a float, so that there is no loss of it");
  }

  const std::vector<InputSpec>& inputs() const { return inputs_; }
  bool is_input(const std::string& name) const {
    return std::any_of(inputs_.begin(), inputs_.end(), [&](const InputSpec& spec) { return spec.name == name; });
  }

  // Whether the output has a vector for each element of the input.
  bool is_for_each_element_of(const InputSpec& input) const {
    return output_->has_rank() && input.type.has_rank() && output_->type().rank() == input.type.rank() + 1;
  }

  // `why` there is none; "" where that is plain.
  LossGuess without_target(const std::string& why = "") const {
    if (is_one_number()) {
      return {quoted_if_needed(output_->name()), concat("the output ", described(*output_), " is one number, and ",
                                                        what_, " holds nothing to compare it with")};
    }
    if (!why.empty())
      fail_as(ErrorCode::kNoLossFound, what_, " holds nothing to compare the output ", described(*output_),
              " with: ", why);
    fail_as(ErrorCode::kNoLossFound, what_, " holds nothing to compare the output ", described(*output_), " with",
            kAdvice, ", or, of a table or arrays, give the name labels to what it is compared with: --map NAME=labels");
  }

  LossGuess with(const Target& target) const {
    const std::string found =
        concat(target.name, " of ", what_, " is ", onnx_train::name(target.dtype), to_string(target.shape));
    const bool integral = is_integer(target.dtype) || target.dtype == DType::kBool;
    if (output_->has_rank() && !target.shape.empty()) {
      if (integral && is_class_of(target)) {
        return {of_classes(target), concat(found, ", a class for each row of ", described(*output_))};
      }
      if (has_shape_of_output(target)) {
        const std::string same = concat(", of the shape of ", described(*output_));
        const auto p = probabilities_of(*output_);
        const bool takes_one_hot = !p || (p->of_classes && p->scores);
        if (target.one_hot && takes_one_hot) {
          const std::string& scores = p ? p->scores->name() : output_->name();
          return {call("cross_entropy", scores, target, "probabilities=true"), concat(found, same, ", one-hot")};
        }
        if (target.zeros_and_ones) {
          const Value* scores = p && !p->of_classes && p->scores ? p->scores : output_;
          return {call("bce_with_logits", scores->name(), target), concat(found, same, ", of two values")};
        }
        return {call("mse", output_->name(), target), concat(found, same)};
      }
    }
    fail_as(ErrorCode::kNoLossFound, "no loss is found: ", found, ", the model's output ", described(*output_),
            "; integers without its axis of classes are compared by cross_entropy, numbers of its shape by mse",
            kAdvice);
  }

  // The one array to compare with; null for none.
  const Target* choose(const std::vector<Target>& targets) const {
    std::string names;
    for (const Target& target : targets) {
      if (target.name == kLabels) return &target;
      names += concat(names.empty() ? "" : ", ", target.name);
    }
    if (targets.size() < 2) return targets.empty() ? nullptr : &targets[0];
    fail_as(ErrorCode::kNoLossFound, what_, " holds ", names, " beside the model's inputs, and none is called labels",
            kAdvice);
  }

 private:
  static std::string described(const Value& value) { return concat(value.name(), " ", to_string(value.type())); }

  bool is_one_number() const {
    if (!output_->has_rank()) return false;
    const Dims& dims = *output_->type().dims;
    return std::all_of(dims.begin(), dims.end(), [](const Dim& dim) { return dim == Dim(1); });
  }

  // The rows that an array without these axes has; nothing for sizes of 1.
  static Dims without_ones(const Dims& dims) {
    Dims rest;
    for (size_t i = 0; i < dims.size(); ++i) {
      if (i == 0 || dims[i] != Dim(1)) rest.push_back(dims[i]);
    }
    return rest;
  }
  // A size of -1 is unknown, as those of pictures on disk are.
  static bool fits(const Dims& wanted, const Shape& shape) {
    const Dims expected = without_ones(wanted), found = without_ones(Dims(shape.begin(), shape.end()));
    if (expected.size() != found.size()) return false;
    for (size_t i = 1; i < expected.size(); ++i) {
      if (expected[i].known() && found[i] != Dim(-1) && expected[i] != found[i]) return false;
    }
    return true;
  }
  bool has_shape_of_output(const Target& target) const { return fits(*output_->type().dims, target.shape); }

  // As cross_entropy finds the axis of classes.
  bool is_class_of(const Target& target) const {
    Dims dims = *output_->type().dims;
    if (dims.size() < 2) return false;
    const auto axis = dims.begin() + static_cast<std::ptrdiff_t>(axis_of_classes(dims.size()));
    if (*axis == Dim(1)) return false;
    dims.erase(axis);
    return fits(dims, target.shape);
  }

  // Of scores, or of the logarithms of what holds probabilities.
  std::string of_classes(const Target& target) const {
    const auto p = probabilities_of(*output_);
    if (!p || !p->of_classes) return call("cross_entropy", output_->name(), target);
    if (p->scores) return call("cross_entropy", p->scores->name(), target);
    return concat("nll(", quoted_if_needed(output_->name()), ", ", quoted_if_needed(target.name), ", log=true)");
  }

  std::string call(const char* loss, const std::string& prediction, const Target& target,
                   const std::string& option = "") const {
    const bool plain = prediction == output_->name() && target.name == kLabels;
    std::string arguments = plain ? "" : concat(quoted_if_needed(prediction), ", ", quoted_if_needed(target.name));
    if (!option.empty()) arguments += (plain ? "" : ", ") + option;
    return arguments.empty() ? loss : concat(loss, "(", arguments, ")");
  }

  const Model& model_;
  const std::string what_;
  std::vector<InputSpec> inputs_;
  const Value* output_ = nullptr;
};

LossGuess guess_from(const Guess& guess, const std::vector<Target>& targets) {
  const Target* const target = guess.choose(targets);
  return target ? guess.with(*target) : guess.without_target();
}

}  // namespace

LossGuess guess_loss(const Model& forward, const TensorMap& arrays, const std::string& what) {
  const Guess guess(forward, what);
  std::vector<Target> targets;
  for (const auto& [name, tensor] : arrays) {
    if (!guess.is_input(name)) targets.push_back(target_of(name, tensor));
  }
  return guess_from(guess, targets);
}

LossGuess guess_loss(const Model& forward, const std::string& path, const ReadOptions& options) {
  if (const auto files = text_files(path, DataRole::kTrain);
      !options.tokenizer.empty() && !files.empty() && holds_preferences(files[0]))
    return {"dpo", path + " holds pairs of answers"};
  const Guess guess(forward, path);
  std::vector<InputSpec> inputs = guess.inputs();
  InputSpec labels{kLabels, {DType::kInt64, std::nullopt}, /*from_loss=*/true};
  // Of a model that tells the next token: the label of a token is the one that follows.
  if (const InputSpec* tokens = token_inputs(inputs).tokens; tokens && guess.is_for_each_element_of(*tokens))
    labels.type.dims = tokens->type.dims;
  inputs.push_back(std::move(labels));
  ReadOptions reading = options;
  if (!reading.ignored_label) reading.ignored_label = -100;  // that of cross_entropy
  const DataArrays data = open_data(path, inputs, reading);
  if (const auto& pictures = data.pictures) {
    const auto samples = static_cast<int64_t>(pictures->files.size());
    if (!pictures->masks.empty()) return guess.with({kLabels, DType::kInt64, {samples, -1, -1}, are_binary(*pictures)});
    if (!pictures->targets.empty()) {
      const auto width = static_cast<int64_t>(pictures->targets[0].size());
      return guess.with({kLabels, DType::kFloat, {samples, width}, !pictures->classes.empty()});
    }
    return pictures->labels.empty() ? guess.without_target(pictures->unlabelled)
                                    : guess.with({kLabels, DType::kInt64, {samples}});
  }
  std::map<std::string, std::string> renamed;
  for (const NamedList& pair : named_lists(options.map, "--map")) renamed[pair.name] = pair.values[0];
  std::vector<Target> targets;
  for (const auto& [file_name, rows] : data.arrays) {
    const auto found = renamed.find(file_name);
    const std::string name = found == renamed.end() ? file_name : found->second;
    if (guess.is_input(name)) continue;
    if (const RowReader* reader = rows.reader()) {
      const TensorSpec spec = reader->spec();
      targets.push_back({name, spec.dtype, spec.shape});
    } else {
      targets.push_back(target_of(name, rows.read_all()));
    }
  }
  return guess_from(guess, targets);
}

LossGuess guess_loss_of_stream(const Model& forward, const std::string& path) {
  return Guess(forward, path).with({kLabels, DType::kInt64, {-1, -1}});
}

}  // namespace onnx_train
