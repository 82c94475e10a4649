#include "runtime/build_notes.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "onnx_passes/import/lost_layers.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/weights/folded_parameters.h"
#include "runtime/check_report.h"

namespace onnx_train {
namespace {

constexpr const char* kNotes = "onnx_train.notes";

}  // namespace

std::vector<Finding> build_notes(const Model& forward) {
  std::vector<Finding> notes = describe_folded_parameters(*forward.graph);
  for (Finding& finding : inspect(forward)) notes.push_back(std::move(finding));
  for (Finding& lost : find_lost_layers(forward)) notes.push_back(std::move(lost));
  return notes;
}

void record_notes(const std::vector<Finding>& notes, Model* training) {
  nlohmann::json json = nlohmann::json::array();
  for (const Finding& note : notes) json.push_back({note.subject, note.what, note.advice});
  // A name may hold bytes that are no UTF-8.
  training->set_metadata(kNotes, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::vector<Finding> recorded_notes(const Model& training) {
  std::vector<Finding> notes;
  const auto json = nlohmann::json::parse(training.metadata(kNotes), nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) return notes;
  for (const auto& row : json) {
    const auto is_text = [](const auto& field) { return field.is_string(); };
    if (row.is_array() && row.size() == 3 && std::all_of(row.begin(), row.end(), is_text))
      notes.push_back({row[0], row[1], row[2]});
  }
  return notes;
}

std::string notes_text(const std::vector<Finding>& notes, size_t width) {
  constexpr size_t kShown = 6;
  if (notes.empty()) return "";
  std::string text = "\nWorth knowing:\n";
  for (size_t i = 0; i < std::min(notes.size(), kShown); ++i) {
    text += to_text(notes[i].subject, notes[i].what, notes[i].advice, width);
  }
  if (notes.size() <= kShown) return text;
  return concat(text, "  and ", notes.size() - kShown, " more: onnx-train check of the forward model\n");
}

}  // namespace onnx_train
