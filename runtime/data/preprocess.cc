#include "runtime/data/preprocess.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes.h"
#include "runtime/data/dataset.h"
#include "runtime/support/options.h"

namespace onnx_train {
namespace {

constexpr double kSmallest = 1e-30, kLargest = 1e30, kMostPixelsASide = 16384;

const StepRow kSteps[] = {
    {"scale", "scale(X) or scale(X/Y)", 1, 1, kSmallest, kLargest},
    {"normalize", "normalize(imagenet) or normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))", 0, 0, 0, 0, false,
     "imagenet cifar10 clip half", "mean std"},
    {"resize", "resize(256) or resize(224, 224)", 1, 2, 1, kMostPixelsASide, true, "bilinear bicubic nearest"},
    {"crop", "crop(224) or crop(224, 224)", 1, 2, 1, kMostPixelsASide, true},
    {"center_crop", "center_crop(224) or center_crop(224, 224)", 1, 2, 1, kMostPixelsASide, true},
    {"letterbox", "letterbox(640) or letterbox(480, 640)", 1, 2, 1, kMostPixelsASide, true, "bilinear bicubic nearest"},
    {"grey", "grey", 0, 0, 0, 0},
    {"rgb", "rgb", 0, 0, 0, 0},
    {"bgr", "bgr", 0, 0, 0, 0},
    {"hwc", "hwc", 0, 0, 0, 0},
    {"chw", "chw", 0, 0, 0, 0},
};

// Of red, green and blue from 0 to 1.
struct ChannelStatistics {
  const char* name;
  std::vector<double> mean, deviation;
};
const ChannelStatistics kStatistics[] = {
    {"imagenet", {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}},
    {"cifar10", {0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}},
    {"clip", {0.48145466, 0.4578275, 0.40821073}, {0.26862954, 0.26130258, 0.27577711}},
    {"half", {0.5}, {0.5}},
};

ChannelStatistics statistics_of(const Step& step) {
  for (const ChannelStatistics& known : kStatistics) {
    if (step.word == known.name) return known;
  }
  return {"", step.named.at("mean"), step.named.at("std")};
}

void check_normalize(const std::string& option, const Step& step) {
  const bool lists = step.named.count("mean") > 0 && step.named.count("std") > 0;
  if (lists != step.word.empty())
    fail_as(ErrorCode::kUsage, option, ": ", step.text, " needs a name, or mean and std: ", kSteps[1].usage);
  if (!lists) return;
  const auto &mean = step.named.at("mean"), &deviation = step.named.at("std");
  if (mean.size() != deviation.size()) {
    fail_as(ErrorCode::kUsage, option, ": ", step.text, " has ", mean.size(), " means and ", deviation.size(),
            " deviations");
  }
  for (const double x : deviation) {
    if (!(x >= kSmallest)) fail_as(ErrorCode::kUsage, option, ": ", step.text, ": deviations are above 0");
  }
}

void check_steps(const std::string& option, const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    if (step.name == "normalize") check_normalize(option, step);
  }
}

Step scale_step(const std::string& option, const std::string& number) {
  ExpressionReader reader(option, number);  // for the column in what is wrong
  const double x = reader.number();
  const double value = reader.take('/') ? x / reader.number() : x;
  if (!reader.at_end()) reader.fail_at(reader.column(), "expected the end");
  if (!(value >= kSmallest && value <= kLargest)) reader.fail_at(1, "a scale is a number above 0");
  return {"scale", {value}, "", {}, concat("scale(", number, ")")};
}

// "INPUT=X": names may contain '=', numbers do not. "" for X alone.
std::pair<std::string, std::string> split(const std::string& text) {
  const size_t at = text.rfind('=');
  if (at == std::string::npos) return {"", text};
  return {text.substr(0, at), text.substr(at + 1)};
}

bool takes_data(const InputSpec& spec) { return !spec.from_loss && !spec.has_default && spec.role.empty(); }

// `option` is --scale or --preprocess, `example` one that names an input: "--scale image=1/255".
const InputSpec& input_of(const std::string& option, const std::string& name, const std::vector<InputSpec>& inputs) {
  std::vector<std::string> names;
  std::vector<const InputSpec*> found;
  for (const InputSpec& spec : inputs) {
    if (!name.empty() && spec.name == name) {
      if (spec.from_loss)
        throw UsageError(concat(option, ": '", name, "' is a target; inputs of the network alone are scaled"));
      if (!is_float(spec.type.dtype) && spec.type.dtype != DType::kUint8) {
        throw UsageError(concat(option, ": '", name, "' takes ", to_string(spec.type), "; floats alone are scaled"));
      }
    }
    if (!takes_data(spec) || !is_float(spec.type.dtype)) continue;
    names.push_back(spec.name);
    if (name.empty() || spec.name == name) found.push_back(&spec);
  }
  if (found.size() == 1) return *found[0];
  std::string list;
  for (const std::string& known : names) list += concat(list.empty() ? "'" : ", '", known, "'");
  if (names.empty()) throw UsageError(option + ": the network has no float input");
  if (!name.empty())
    throw UsageError(concat(option, ": the network has no input '", name, "'; its float inputs are ", list));
  const char* example = option == "--scale" ? "=1/255" : ": resize(256), crop(224)";
  throw UsageError(concat(option, ": the network has the float inputs ", list, "; name those to scale, as in ", option,
                          " ", names[0], example));
}

}  // namespace

bool is_picture_step(const Step& step) { return step.name != "scale" && step.name != "normalize"; }

std::vector<std::string> preprocess_step_names() { return step_names(kSteps); }

std::vector<Step> read_preprocess_steps(const std::string& option, const std::string& text) {
  std::vector<Step> steps = read_steps(option, text, kSteps);
  check_steps(option, steps);
  return steps;
}

Preprocess::Preprocess(const Model& model) {
  const std::string text = model.metadata(kPreprocess);
  if (text.empty()) return;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) fail("the metadata '", kPreprocess, "' are no JSON object: ", text);
  for (const auto& [input, steps] : json.items()) {
    if (!steps.is_string()) fail("the metadata '", kPreprocess, "': the steps of '", input, "' are no text");
    inputs_[input] = read_preprocess_steps(concat(kPreprocess, " of '", input, "'"), steps.get<std::string>());
  }
}

Preprocess::Preprocess(const std::vector<std::string>& scales, const std::vector<InputSpec>& inputs) {
  for (const std::string& text : scales) {
    if (text == "1") continue;  // of every input, however many there are
    const auto [name, number] = split(text);
    const std::string input = input_of("--scale", name, inputs).name;
    const Step step = scale_step("--scale", number);
    if (inputs_.count(input) > 0) throw UsageError(concat("--scale: '", input, "' is given twice"));
    if (step.numbers[0] != 1) inputs_[input] = {step};
  }
}

Preprocess Preprocess::of_steps(const std::string& text, const std::vector<InputSpec>& inputs) {
  const std::string option = "--preprocess";
  Preprocess result;
  ExpressionReader reader(option, text);
  do {
    ExpressionReader ahead = reader;
    std::string name = ahead.word("a step").text;
    ahead.take(':') ? void(reader = ahead) : name.clear();
    const std::string input = input_of(option, name, inputs).name;
    if (result.inputs_.count(input) > 0) throw UsageError(concat(option, ": '", input, "' is given twice"));
    std::vector<Step>& steps = result.inputs_[input] = read_steps(&reader, kSteps);
    check_steps(option, steps);
    const auto normalize =
        std::find_if(steps.begin(), steps.end(), [](const Step& s) { return s.name == "normalize"; });
    if (normalize != steps.end() && !find_step(steps, "scale")) steps.insert(normalize, scale_step(option, "1/255"));
  } while (reader.take(';'));
  if (!reader.at_end()) reader.fail_at(reader.column(), "expected the end");
  return result;
}

const std::vector<Step>& Preprocess::steps(const std::string& input) const {
  static const std::vector<Step> kNone;
  const auto found = inputs_.find(input);
  return found == inputs_.end() ? kNone : found->second;
}

Rescaling Preprocess::rescaling(const std::string& input) const {
  std::vector<double> scale = {1}, shift = {0};
  for (const Step& step : steps(input)) {
    if (is_picture_step(step)) continue;
    const bool scales = step.name == "scale";
    const ChannelStatistics statistics =
        scales ? ChannelStatistics{"", {0}, {1 / step.numbers[0]}} : statistics_of(step);
    const size_t channels = std::max(scale.size(), statistics.mean.size());
    if (scale.size() != channels) {
      scale.assign(channels, scale[0]);
      shift.assign(channels, shift[0]);
    }
    for (size_t c = 0; c < channels; ++c) {
      const size_t of = statistics.mean.size() == 1 ? 0 : c;
      if (of >= statistics.mean.size()) fail("'", input, "': the normalizations differ in their number of channels");
      scale[c] /= statistics.deviation[of];
      shift[c] = (shift[c] - statistics.mean[of]) / statistics.deviation[of];
    }
  }
  return {scale, shift};
}

double Preprocess::scale(const std::string& input) const {
  double scale = 1;
  for (const Step& step : steps(input)) {
    if (step.name != "scale") {
      throw UsageError(
          concat("'", input, "' is preprocessed by ", text_of(steps(input)),
                 ", which is done to files, and to arrays given to fit; other arrays must be so already: run()"
                 " takes them as they are"));
    }
    scale *= step.numbers[0];
  }
  return scale;
}

bool Preprocess::only_scales() const {
  return std::all_of(inputs_.begin(), inputs_.end(), [](const auto& input) {
    return std::all_of(input.second.begin(), input.second.end(), [](const Step& s) { return s.name == "scale"; });
  });
}

std::string Preprocess::text() const {
  std::string text;
  for (const auto& [name, steps] : inputs_) text += concat(text.empty() ? "" : "; ", name, ": ", text_of(steps));
  return empty() ? "nothing" : text;
}

std::string Preprocess::option() const {
  if (empty() || !only_scales()) return "1";
  std::string text;
  for (const auto& [name, steps] : inputs_) {
    const std::string& written = steps[0].text;
    const std::string number = steps.size() == 1 ? written.substr(6, written.size() - 7) : number_text(scale(name));
    text += concat(text.empty() ? "" : ",", name, "=", number);
  }
  return text;
}

std::string Preprocess::steps_option() const {
  if (only_scales()) return "";
  std::string text;
  for (const auto& [name, steps] : inputs_) {
    text += concat(text.empty() ? "" : "; ", quoted_if_needed(name), ": ", text_of(steps));
  }
  return text;
}

std::string Preprocess::json() const {
  if (empty()) return "";
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, steps] : inputs_) json[name] = text_of(steps);
  return json.dump();
}

bool Preprocess::same(const Preprocess& other) const {
  const auto equal = [](const auto& a, const auto& b) {
    constexpr double kAsWritten = 1e-5;  // 0.00392157 for 1/255
    const auto close = [](double x, double y) { return std::abs(x - y) <= kAsWritten * std::abs(x); };
    const auto same_step = [&](const Step& x, const Step& y) {
      return x.text == y.text || (x.name == "scale" && y.name == "scale" && close(x.numbers[0], y.numbers[0]));
    };
    return a.first == b.first &&
           std::equal(a.second.begin(), a.second.end(), b.second.begin(), b.second.end(), same_step);
  };
  return std::equal(inputs_.begin(), inputs_.end(), other.inputs_.begin(), other.inputs_.end(), equal);
}

void check_scale(const std::string& text) {
  try {
    scale_step("--scale", split(text).second);
  } catch (const Error&) {
    fail("a number above 0 such as 0.5 or 1/255, or INPUT=NUMBER");
  }
}

Preprocess preprocess_of(const Model& model, const DataOptions& options, const std::vector<InputSpec>& inputs,
                         std::string* note) {
  Preprocess stored(model);
  if (!options.says_how()) return stored;
  const bool steps = !options.preprocess.empty();
  // A run that is resumed has both: the scale 1 beside its steps.
  if (steps && !options.scales.empty() && options.scales != std::vector<std::string>{"1"}) {
    throw UsageError("--scale and --preprocess exclude each other: write scale(X) among the steps");
  }
  Preprocess given = steps ? Preprocess::of_steps(options.preprocess, inputs) : Preprocess(options.scales, inputs);
  if (given.same(stored)) return stored;
  if (!stored.empty()) {
    *note = concat(steps ? "--preprocess " : "--scale ", steps ? given.steps_option() : given.option(),
                   " takes the place of what the model was trained with: ", stored.text());
  }
  return given;
}

}  // namespace onnx_train
