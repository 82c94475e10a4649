#include "onnx_passes/training/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/model/select.h"
#include "onnx_passes/training/optimizer_spec.h"
#include "onnx_passes/training/parameter_groups.h"
#include "tests/support/paths.h"

namespace onnx_train::optimizer_test {
namespace {

using testing::HasSubstr;

std::string message(const std::string& text) {
  try {
    parse_optimizer(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Optimizer, ReadsWhatItWrites) {
  EXPECT_EQ(to_string(parse_optimizer("sgd")), "sgd(lr=0.01, momentum=0, dampening=0, weight_decay=0)");
  EXPECT_EQ(to_string(parse_optimizer("adam")), "adam(lr=0.001, betas=(0.9, 0.999), eps=1e-08, weight_decay=0)");
  for (const char* text : {"sgd(lr=0.5, momentum=0.9, dampening=0, nesterov=true, weight_decay=0.0001)",
                           "adamw(lr=3e-05, betas=(0.8, 0.95), eps=1e-06, weight_decay=0.1)",
                           "adan(lr=0.001, betas=(0.9, 0.8, 0.7), eps=1e-08, weight_decay=0, no_prox=true)"}) {
    EXPECT_EQ(to_string(parse_optimizer(text)), text);
  }
  EXPECT_EQ(to_string(parse_optimizer(" adamw ( beta2 = 0.95 )")),
            "adamw(lr=0.001, betas=(0.9, 0.95), eps=1e-08, weight_decay=0.01)");
}

TEST(Optimizer, MisspeltNamesNameTheOneThatIsMeant) {
  const auto message = [](const std::string& text) {
    try {
      parse_optimizer(text);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message("adamW"), testing::HasSubstr("there is sgd, adam, adamw, hf_adamw, sparse_adam, "));
  EXPECT_THAT(message("adamW"), testing::HasSubstr("; did you mean 'adamw'?"));
  EXPECT_THAT(message("adamw(weigth_decay=0)"), testing::HasSubstr("did you mean 'weight_decay'?"));
}

TEST(Optimizer, MistakesPointAtTheColumn) {
  EXPECT_THAT(message("tiger"),
              HasSubstr("--optimizer \"tiger\", column 1: there is no optimizer 'tiger'; there is sgd, "));
  EXPECT_THAT(
      message("sgd(momentun=0.9)"),
      HasSubstr("column 5: sgd has no option 'momentun'; it has lr, momentum, dampening, nesterov, weight_decay; "
                "did you mean 'momentum'?"));
  EXPECT_THAT(message("adam(betas=0.9)"), HasSubstr("column 12: betas are two numbers"));
  EXPECT_THAT(message("adam(betas=(0.9, 0.9, 0.9))"), HasSubstr("betas are two numbers: betas=(0.9, 0.999)"));
  EXPECT_THAT(message("adan(betas=(0.9, 0.9))"), HasSubstr("betas are 3 numbers: betas=(0.98, 0.92, 0.99)"));
  EXPECT_THAT(message("adam(betas=(0.9))"), HasSubstr("expected ','"));
  EXPECT_THAT(message("adam(beta1=1)"), HasSubstr("column 12: 'beta1' is 1; it must be in [0, 1)"));
  EXPECT_THAT(message("adamw(lr=-1)"), HasSubstr("'lr' is -1; it must be 0 or more"));
  EXPECT_THAT(message("sgd(nesterov=true)"), HasSubstr("nesterov needs a momentum"));
  EXPECT_THAT(message("sgd(0.9)"), HasSubstr("column 5: expected a name or an option, found '0'"));
  EXPECT_THAT(message("sgd(momentum)"), HasSubstr("'momentum' has no value; write momentum=..."));
  EXPECT_THAT(message("sgd(momentum=fast)"), HasSubstr("'momentum' is a number"));
  EXPECT_THAT(message("sgd adam"), HasSubstr("column 5: expected the end"));
  EXPECT_THAT(message("muon(adjust_lr_fn=spectral)"), HasSubstr("'adjust_lr_fn' is original or match_rms_adamw"));
  EXPECT_THAT(message("muon(ns_steps=2.5)"), HasSubstr("'ns_steps' is 2.5; it must be a whole number from 0 to 99"));
  EXPECT_THAT(message("adafactor(beta2_decay=0.8)"), HasSubstr("it must be 0 or less"));
}

// docs/training.md lists what the table says.
TEST(Optimizer, TheDocumentationHasARowForEach) {
  std::ifstream file(source_folder() / "docs/training.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  for (const OptimizerRow& row : optimizer_rows()) {
    const std::string line = concat("| `", to_string(parse_optimizer(row.name)), "` | ", row.source, " |\n");
    EXPECT_THAT(page, HasSubstr(line));
  }
}

// ---- Groups

constexpr const char* kBlocks = R"(<ir_version: 10, opset_import: ["" : 21]>
network (float[batch,2] x) => (float[batch,2] y) <float[2,2] "embed.weight" = {1,2,3,4}, float[2] "blocks.0.bias" = {1,2},
  float[2,2] "blocks.0.weight" = {1,2,3,4}, float[2,2] "blocks.1.weight" = {1,2,3,4}, float[2,2] "norm.weight" = {1,2,3,4},
  float[2,2] "head.weight" = {1,2,3,4}>
{
  e = MatMul (x, "embed.weight")
  t = Transpose ("blocks.0.weight")
  a = MatMul (e, t)
  b = Add (a, "blocks.0.bias")
  c = MatMul (b, "blocks.1.weight")
  d = MatMul (c, "norm.weight")
  y = MatMul (d, "head.weight")
})";

ParameterGroups grouped(const Model& model, const BuildOptions& options) {
  return parameter_groups(model, select_trainable(model, {}, {}), options);
}

std::string group_message(const std::string& group) {
  const Model model = from_text(kBlocks);
  BuildOptions options;
  options.groups = {group};
  try {
    grouped(model, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ParameterGroups, TheLastGroupThatMatchesWinsOptionByOption) {
  const Model model = from_text(kBlocks);
  BuildOptions options;
  options.groups = {"*: lr=10x, betas=(0.5, 0.6)", "blocks.0.*: lr=2x, weight_decay=0.25", "head.weight: lr=1e-4"};
  const ParameterGroups groups = grouped(model, options);
  const auto of = [&](const char* name) { return groups.updates.at(model.graph->find(name)); };
  EXPECT_EQ(of("embed.weight").rate, 10);
  EXPECT_EQ(of("blocks.0.bias").rate, 2);
  EXPECT_EQ(of("blocks.0.bias").spec["weight_decay"], 0.25);  // for a bias, too
  EXPECT_EQ(of("blocks.0.bias").spec["beta2"], 0.6);
  EXPECT_DOUBLE_EQ(of("head.weight").rate, 0.1);
  EXPECT_EQ(of("head.weight").spec["weight_decay"], 0.01);
  ASSERT_EQ(groups.lines.size(), 3u);
  EXPECT_EQ(groups.lines[1].group, options.groups[1]);
  EXPECT_EQ(groups.lines[1].tensors, 2u);
  EXPECT_EQ(groups.lines[1].elements, 6);
}

TEST(ParameterGroups, RatesDecayByLayersFromTheHeadOn) {
  const Model model = from_text(kBlocks);
  BuildOptions options;
  options.layer_decay = 0.5;
  options.groups = {"embed.*: lr=4x", "blocks.1.*: lr=1e-3"};
  const ParameterGroups groups = grouped(model, options);
  const auto rate = [&](const char* name) { return groups.updates.at(model.graph->find(name)).rate; };
  EXPECT_EQ(rate("head.weight"), 1);
  EXPECT_EQ(rate("norm.weight"), 1);
  EXPECT_EQ(rate("blocks.1.weight"), 1);  // its group gives a rate
  EXPECT_EQ(rate("blocks.0.weight"), 0.25);
  EXPECT_EQ(rate("blocks.0.bias"), 0.25);
  EXPECT_EQ(rate("embed.weight"), 0.5);  // 4 * 0.125
  EXPECT_EQ(groups.lines.back().group, "layer 3: norm, head, lr=1x");
}

TEST(ParameterGroups, MistakesAreNamed) {
  EXPECT_THAT(group_message("head"), HasSubstr("--group 'head' has no options; write 'PATTERN: lr=0.1x"));
  EXPECT_THAT(group_message(": lr=1x"), HasSubstr("has no pattern"));
  EXPECT_THAT(group_message("head.*:"), HasSubstr("--group 'head.*': \"\", column 1: expected an option"));
  EXPECT_THAT(group_message("heads.*: lr=1x"), HasSubstr("--group 'heads.*' matches none of the 6 weights"));
  EXPECT_THAT(group_message("head.*: momentum=0.9"), HasSubstr("adamw has no option 'momentum'"));
  EXPECT_THAT(group_message("head.*: lr=-1x"), HasSubstr("'lr' is -1; it must be 0 or more"));
  EXPECT_THAT(group_message("head.*: lr=fast"), HasSubstr("expected a number"));
  EXPECT_THAT(group_message("head.*: lr=1x betas=(0.1, 0.2)"), HasSubstr("expected ',' or the end"));
}

TEST(ParameterGroups, MuonGivesTheRestToAdamW) {
  const Model model = from_text(kBlocks);
  BuildOptions options;
  options.optimizer = "muon(lr=0.02, adamw_lr=0.001)";
  options.groups = {"head.*: use_muon=false, lr=2x"};
  const ParameterGroups groups = grouped(model, options);
  const auto of = [&](const char* name) { return groups.updates.at(model.graph->find(name)); };
  EXPECT_STREQ(of("blocks.1.weight").spec.row->name, "muon");
  EXPECT_STREQ(of("head.weight").spec.row->name, "adamw");
  EXPECT_DOUBLE_EQ(of("head.weight").rate, 0.1);
  EXPECT_DOUBLE_EQ(of("blocks.0.bias").rate, 0.05);
  EXPECT_EQ(of("blocks.0.bias").spec["eps"], 1e-8);
}

}  // namespace
}  // namespace onnx_train::optimizer_test
