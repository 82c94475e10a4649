#include "library/options.h"

#include <map>

#include "onnx_train/onnx_train.h"
#include "runtime/generation/generate.h"
#include "runtime/models/build_settings.h"
#include "runtime/models/check_report.h"
#include "runtime/models/inference_export.h"

namespace onnx_train {

std::vector<CommandOption> options_of_fit(FitSettings* settings) {
  return taken_by(TakenBy::kLibrary, joined(training_options(settings), sample_options(&settings->trainer.samples)));
}

std::vector<CommandOption> options_of_session(SessionSettings* settings) {
  return taken_by(TakenBy::kLibrary, joined(joined(session_options(settings), rank_options(settings)),
                                            {tta_option(settings), seed_option(settings)}));
}

namespace {

struct TypeName {
  const char* operator()(const bool*) const { return "bool"; }
  const char* operator()(const int64_t*) const { return "integer"; }
  const char* operator()(const uint64_t*) const { return "integer"; }
  const char* operator()(const double*) const { return "number"; }
  const char* operator()(const std::string*) const { return "text"; }
  const char* operator()(const std::vector<std::string>*) const { return "list"; }
  template <typename T>
  const char* operator()(const std::optional<T>*) const {
    return (*this)(static_cast<const T*>(nullptr));
  }
};

// "bool", "integer|auto"
std::string type_of(const CommandOption& option) {
  return concat(std::visit(TypeName(), option.target.to), option.target.automatic ? "|auto" : "");
}

// A line for each option: its name, its type, what its value is, and what it does.
std::string lines_of(const std::vector<CommandOption>& options) {
  std::string text;
  for (const CommandOption& option : options)
    text += concat(key_of(option), "\t", type_of(option), "\t", is_flag(option) ? "true|false" : option.value, "\t",
                   option.help, "\n");
  return text;
}

std::map<std::string, std::string> all_lines() {
  FitSettings fit;
  SessionSettings session;
  BuildSettings build;
  DataOptions data;
  SampleOptions samples;
  CheckSettings check;
  ExportSettings exported;
  GenerationOptions generation;
  return {{"build", lines_of(build_options(&build))},
          {"forward", lines_of(options_of_forward_run(&build))},
          {"session", lines_of(options_of_session(&session))},
          {"data", lines_of(data_options(&data))},
          {"samples", lines_of(taken_by(TakenBy::kLibrary, sample_options(&samples)))},
          {"fit", lines_of(options_of_fit(&fit))},
          {"check", lines_of(check_options(&check))},
          {"export", lines_of(export_options(&exported))},
          {"generate", lines_of(generation_options(&generation))}};
}

}  // namespace
}  // namespace onnx_train

extern "C" const char* onnx_train_options(const char* of) {
  static const auto& lines = *new std::map<std::string, std::string>(onnx_train::all_lines());
  const auto found = lines.find(of ? of : "");
  return found == lines.end() ? nullptr : found->second.c_str();
}
