#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "runtime/data/tokenizer/step_table.h"
#include "runtime/data/tokenizer/steps.h"

namespace onnx_train {
namespace {

using Json = nlohmann::json;
using Template = std::vector<TemplatePart>;

Template around(const Json& json) {
  return {{false, {json.at("cls").at(1).get<int64_t>()}}, {true, {}}, {false, {json.at("sep").at(1).get<int64_t>()}}};
}

Template parts(const Json& json) {
  const Json& tokens = json.at("special_tokens");
  Template parts;
  for (const Json& part : json.at("single")) {
    if (const auto text = part.find("Sequence"); text != part.end()) {
      if (text->at("id") != "A") fail("'single' of TemplateProcessing has a second text");
      parts.push_back({true, {}});
      continue;
    }
    const std::string name = part.at("SpecialToken").at("id");
    parts.push_back({false, tokens.at(name).at("ids").get<std::vector<int64_t>>()});
  }
  return parts;
}

constexpr TokenizerStep<Template> kPostProcessors[] = {
    {"TemplateProcessing", parts},
    {"BertProcessing", around},
    {"RobertaProcessing", around},
    {"ByteLevel", [](const Json&) { return Template(); }},  // moves positions alone
};

}  // namespace

std::vector<TemplatePart> template_of(const Json& json) {
  std::vector<Template> steps;
  add_steps(json, kPostProcessors, "post_processor", "processors", &steps);
  std::erase_if(steps, [](const Template& step) { return step.empty(); });
  if (steps.size() > 1) fail("the post_processor puts tokens around a text ", steps.size(), " times");
  return steps.empty() ? Template() : steps[0];
}

}  // namespace onnx_train
