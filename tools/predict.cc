#include <array>
#include <charconv>
#include <optional>

#include "kernels/dispatch.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/table_metadata.h"
#include "onnx_passes/text/expression.h"
#include "runtime/data/class_names.h"
#include "runtime/data/loading/prediction.h"
#include "runtime/data/loading/source.h"
#include "runtime/models/example_inputs.h"
#include "runtime/session/session.h"
#include "runtime/support/report_text.h"
#include "runtime/training/checkpoint.h"
#include "tools/report/output.h"
#include "tools/runtime_options.h"
#include "tools/subcommand.h"

namespace onnx_train {
namespace {

struct PredictArguments {
  std::string model, inputs, output, dtype = "float32";
  int64_t batch_size = 128;
  bool classes = false;
  DataOptions reading;
  SessionSettings runtime;
};

constexpr const char* kTable = ".csv";

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string name_of_sample(const Dataset& data, int64_t row) {
  const std::string origin = data.origin(row);
  return origin.empty() ? concat("sample ", row) : origin;
}

// "file,class,probability,index" for each sample, the class by its name or number, and the first of them as a table. Of
// classes that are yes or no by themselves a column for the probability of each.
class ClassTable {
 public:
  ClassTable(const Dataset& data, std::vector<std::string> names, const PredictedClasses& found)
      : data_(data), names_(std::move(names)) {
    found.classes.shape().size() == 1 ? add_classes(found) : add_columns(found.probabilities);
  }

  const std::string& csv() const { return csv_; }
  std::string shown() const {
    const int64_t more = data_.num_samples() - kShown;
    return table_.text(0, text_width()) + (more > 0 ? concat("and ", more, " more\n") : "");
  }

 private:
  static constexpr int64_t kShown = 10;

  std::string file(int64_t row) const { return name_of_sample(data_, row); }
  std::string name(int64_t number) const {
    const auto i = static_cast<size_t>(number);
    return i < names_.size() ? names_[i] : std::to_string(number);
  }

  void add_classes(const PredictedClasses& found) {
    csv_ = "file,class,probability,index\n";
    for (int64_t row = 0; row < found.classes.size(); ++row) {
      const auto index = static_cast<int64_t>(found.classes.at(row));
      const double probability = found.probabilities.at(row);
      csv_ +=
          concat(csv_field(file(row)), ",", csv_field(name(index)), ",", number_text(probability), ",", index, "\n");
      if (row < kShown) table_.add({file(row), name(index), concat(format_number(100 * probability), "%")});
    }
  }

  void add_columns(const Tensor& probabilities) {
    const int64_t classes = probabilities.shape()[1];
    csv_ = "file";
    for (int64_t c = 0; c < classes; ++c) csv_ += "," + csv_field(name(c));
    csv_ += "\n";
    for (int64_t row = 0; row < probabilities.shape()[0]; ++row) {
      csv_ += csv_field(file(row));
      std::string likely;
      for (int64_t c = 0; c < classes; ++c) {
        const double probability = probabilities.at(row * classes + c);
        csv_ += "," + number_text(probability);
        if (probability > 0.5) likely += concat(likely.empty() ? "" : ", ", name(c));  // NOLINT
      }
      csv_ += "\n";
      if (row < kShown) table_.add({file(row), likely.empty() ? "none" : likely});
    }
  }

  const Dataset& data_;
  const std::vector<std::string> names_;
  std::string csv_;
  TextTable table_{"llr"};
};

struct FoundClasses {
  ScoresOf what;
  PredictedClasses predicted;
};

// The classes of the outputs, and a sentence where what they are is a guess. A single number for each sample is a class
// where classes are `wanted` or have names.
std::optional<FoundClasses> classes_of(const Model& model, const TensorMap& results, size_t names, bool wanted,
                                       DataNotes* notes) {
  std::optional<ScoresOf> what = scores_of(model, results);
  if (!what && (wanted || model.metadata(kScoresOf) != kNoScores)) {
    what = guessed_scores(results, names, wanted || names > 0);
    if (what) {
      const std::string how = what->probabilities ? "as they are" : what->yes_no ? "by the sigmoid" : "by softmax";
      notes->push_back(concat("the model does not say which output holds scores of classes; taken is '", what->output,
                              "' ", to_string(results.at(what->output).shape()), ", probabilities ", how));
    }
  }
  if (!what) return std::nullopt;
  return FoundClasses{*what, predicted_classes(results.at(what->output), *what)};
}

// As few digits as tell the element from its neighbours.
std::string element_text(const Tensor& tensor, int64_t i) {
  if (tensor.dtype() == DType::kDouble) return number_text(tensor.at(i));
  std::array<char, 32> text;
  const char* end = text.data();
  if (is_integer(tensor.dtype())) {
    dispatch_integer(tensor.dtype(), [&](auto tag) {
      end = std::to_chars(text.begin(), text.end(), +tensor.data<decltype(tag)>()[i]).ptr;
    });
  } else {
    end = std::to_chars(text.begin(), text.end(), static_cast<float>(tensor.at(i))).ptr;
  }
  return {static_cast<const char*>(text.data()), end};
}

// Numbers of a sample, of an output [samples] or [samples, columns].
int64_t columns_of(const Tensor& output) { return output.shape().size() == 2 ? output.shape()[1] : 1; }

// The outputs of each sample as a table: a column for one number, columns NAME[0], NAME[1], ... for several.
std::string number_table(const Dataset& data, const TensorMap& outputs) {
  std::string csv = "file";
  for (const auto& [name, output] : outputs) {
    const Shape& shape = output.shape();
    const bool is_table = !shape.empty() && shape[0] == data.num_samples() && shape.size() <= 2;
    if (!is_table) {
      fail("output '", name, "' is ", to_string(shape), " for ", data.num_samples(),
           " samples, which is no table: write it as .npz");
    }
    const int64_t columns = columns_of(output);
    for (int64_t c = 0; c < columns; ++c) csv += "," + csv_field(columns == 1 ? name : concat(name, "[", c, "]"));
  }
  csv += "\n";
  for (int64_t row = 0; row < data.num_samples(); ++row) {
    csv += csv_field(name_of_sample(data, row));
    for (const auto& [name, output] : outputs) {
      const int64_t columns = columns_of(output);
      for (int64_t c = 0; c < columns; ++c) csv += "," + element_text(output, row * columns + c);
    }
    csv += "\n";
  }
  return csv;
}

// One class for each sample, or one yes or no for each of its classes.
bool fits_table(const FoundClasses& found, int64_t samples) {
  const Shape& shape = found.predicted.classes.shape();
  return !shape.empty() && shape[0] == samples && shape.size() <= (found.what.yes_no ? 2U : 1U);
}

int run(const PredictArguments& arguments) {
  Session session(in_precision(load_any_model(arguments.model), arguments.dtype),
                  options_of_session(arguments.runtime));
  DataNotes notes;
  const Dataset data = load_dataset(arguments.inputs, session.model(), Entry::kPredict,
                                    ReadOptions{arguments.reading, {}, {}, {}}, &notes);
  TensorMap results = predict(&session, data, arguments.batch_size);
  const Model& model = session.model();
  const std::vector<std::string> names = classes_from_json(model.metadata(kClassNames));
  const bool is_table = arguments.output.ends_with(kTable);
  DataNotes guesses;
  std::optional<FoundClasses> found;
  if (is_table || arguments.classes || !names.empty())
    found = classes_of(model, results, names.size(), arguments.classes, &guesses);
  std::optional<ClassTable> table;
  if (found && fits_table(*found, data.num_samples())) table.emplace(data, names, found->predicted);
  if (is_table || arguments.classes) notes.insert(notes.end(), guesses.begin(), guesses.end());
  print_notes(notes);
  if (arguments.classes && !found) fail(arguments.model, " has no output with scores of classes: leave out --classes");
  if (is_table) {
    if (found && !table) fail(arguments.model, " gives several classes for each sample: write them as .npz");
    write_file(arguments.output, table ? table->csv() : number_table(data, results));
    if (table) print(table->shown());
    return 0;
  }
  if (arguments.classes) {
    results = {{"class", found->predicted.classes},
               {"probability", found->predicted.probabilities.cast(DType::kFloat)}};
  }
  write_arrays(arguments.output, results);
  std::string text = arguments.output + ":";
  for (const auto& [name, tensor] : results) {
    text += concat(" ", name, " ", onnx_train::name(tensor.dtype()), to_string(tensor.shape()));
  }
  print(wrap(text, text_width(), 0, 2) + "\n");
  if (table) print(table->shown());
  return 0;
}

}  // namespace

Subcommand predict_command() {
  auto a = std::make_shared<PredictArguments>();
  return {
      "predict", "Outputs of a model for given inputs",
      "  onnx-train predict model.onnx --inputs test.npz -o outputs.npz\n"
      "  onnx-train predict run/best.onnx --inputs test.csv -o outputs.npz --batch-size 256\n"
      "  onnx-train predict run/best.onnx --inputs pictures/ -o classes.csv\n"
      "  onnx-train predict model.onnx --inputs test.npz -o classes.npz --classes",
      with_session_options(
          {{"MODEL", &a->model, "a forward model, a training model or a checkpoint", "FILE", true},
           {"--inputs,--data", &a->inputs, "the inputs: any data that fit takes, labels not needed", "PATH", true},
           {"-o,--output",
            {&a->output, file_with(std::vector<std::string>{".npz", ".safetensors", kTable})},
            "the .npz or .safetensors file to write; keys are output names. Or a .csv file: file, class, probability, "
            "index; of a model without classes, file and its outputs",
            "FILE",
            true},
           {"--classes", &a->classes,
            "write the class of each sample, an index, and its probability, keys class and probability, in the place "
            "of "
            "outputs"},
           {"--batch-size", {&a->batch_size, kCount}, "samples at a time [128]", "N"},
           scale_option(&a->reading.scales),
           preprocess_option(&a->reading.preprocess),
           tta_option(&a->runtime),
           seed_option(&a->runtime),
           dtype_option(&a->dtype)},
          &a->runtime, &a->reading),
      [a] { return run(*a); }};
}

}  // namespace onnx_train
