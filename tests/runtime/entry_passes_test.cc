// The pipeline from a whole model to one entry point as a rank plans it.
#include "runtime/plan/entry_passes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/transformer.h"

namespace onnx_train::entry_passes_test {
namespace {

std::string names(const std::vector<Pass>& passes) {
  std::string text;
  for (const Pass& pass : passes) text += (text.empty() ? "" : " ") + pass.name;
  return text;
}

std::string wanted(const EntryOptions& options) { return names(wanted_passes(entry_rows(options))); }

TEST(EntryPasses, OneRankFlattensAndDraws) {
  EXPECT_EQ(wanted({}), "flatten draw_from_input");
  EXPECT_EQ(wanted({.entry = "predict", .states = {"w"}}), "flatten draw_from_input read_states");
  EXPECT_EQ(wanted({.entry = "predict", .views = parse_views("flip")}), "average_over_views flatten draw_from_input");
  EXPECT_EQ(wanted({.entry = "step", .views = parse_views("flip")}), "flatten draw_from_input");
}

TEST(EntryPasses, RanksShareBatchesOrStates) {
  EXPECT_EQ(wanted({.entry = "accumulate", .ranks = 2}),
            "flatten draw_from_input distribute_over_ranks bucket_collectives order_collectives");
  EXPECT_EQ(wanted({.entry = "accumulate", .ranks = 2, .overlaps = true}),
            "flatten draw_from_input distribute_over_ranks sum_early bucket_collectives "
            "overlap_collectives order_collectives");
  EXPECT_EQ(wanted({.entry = "apply", .overlaps = true, .owners = {{"w", 1}}}),
            "flatten draw_from_input shard_states bucket_collectives drop_states_of_others overlap_collectives "
            "order_collectives");
}

TEST(EntryPasses, AStageIsCutOnceAllIsDistributed) {
  const EntryOptions one = {.entry = "accumulate", .overlaps = true, .owners = {{"w", 1}}, .stages = 2};
  EXPECT_EQ(wanted(one), "flatten draw_from_input name_data_axis make_stage order_collectives");
  EXPECT_EQ(names(passes_before_stages(one)), "flatten draw_from_input name_data_axis");
  const EntryOptions two = {.entry = "accumulate", .ranks = 2, .stages = 2};
  EXPECT_EQ(wanted(two),
            "flatten draw_from_input distribute_over_ranks name_data_axis make_stage bucket_collectives "
            "order_collectives");
  const EntryOptions fast = {.entry = "accumulate", .ranks = 2, .sums = {GradientSums::kOfStep}, .stages = 2};
  EXPECT_EQ(wanted(fast),
            "flatten draw_from_input distribute_over_ranks name_data_axis make_stage sum_once "
            "bucket_collectives order_collectives");
}

TEST(EntryPasses, TensorsAreSplitOnceAllIsDistributed) {
  const EntryOptions one = {.entry = "accumulate", .cuts = {{"w", {0, 4}}}, .parts = 2};
  EXPECT_EQ(wanted(one), "flatten draw_from_input name_data_axis split_tensors order_collectives");
  const EntryOptions two = {
      .entry = "apply", .overlaps = true, .owners = {{"m", 1}}, .cuts = {{"w", {0, 4}}}, .parts = 2};
  EXPECT_EQ(wanted(two),
            "flatten draw_from_input shard_states name_data_axis split_tensors bucket_collectives "
            "drop_states_of_others overlap_collectives order_collectives");
}

TEST(EntryPasses, TheWholeModelStaysAsItIs) {
  const Model whole = make_training_transformer({.blocks = 1});
  const std::string before = to_text(whole);
  const EntryOptions options;
  const Model step = make_entry(whole, options, wanted_passes(entry_rows(options)));
  EXPECT_EQ(to_text(step), to_text(flatten(whole, "step")));
  EXPECT_EQ(to_text(whole), before);
  std::vector<std::string> seen;
  make_entry(whole, options, wanted_passes(entry_rows(options)),
             {.observe = [&](const PassTiming*, const Model& model) { seen.push_back(to_text(model)); }});
  EXPECT_EQ(seen, (std::vector<std::string>{to_text(clone(whole)), to_text(step), to_text(step)}));
}

// What a session keeps of a pass in which it has failed, of both of its pipelines.
TEST(EntryPasses, ASessionKeepsTheModelBeforeAPass) {
  for (const PassPlace& place : {PassPlace{"flatten", 1}, PassPlace{"fold_constants", 3}}) {
    SessionOptions options;
    options.plan.pipeline.kept = place;
    options.plan.pipeline.kept_file = testing::TempDir() + "kept_by_session.onnx";
    std::filesystem::remove(options.plan.pipeline.kept_file);
    Session session(make_training_transformer({.blocks = 1}), options);
    session.plan("step", {{"tokens", {2, 4}}, {"labels", {2, 4}}});
    const Model kept = load_model(options.plan.pipeline.kept_file);
    EXPECT_EQ(kept.entry_points.empty(), place.name != "flatten") << place.name;
  }
}

}  // namespace
}  // namespace onnx_train::entry_passes_test
