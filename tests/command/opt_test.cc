#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <stdexcept>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/pipeline/kept_faults.h"
#include "onnx_passes/pipeline/reduce.h"
#include "runtime/models/adapt.h"
#include "runtime/models/build_settings.h"
#include "tests/support/scoped_variable.h"
#include "tools/opt/pass_page.h"
#include "tools/opt/pass_registry.h"
#include "tools/opt/text_diff.h"

namespace onnx_train::opt_test {
namespace {

using testing::HasSubstr;

constexpr const char* kNetwork = R"(<ir_version: 10, opset_import: ["" : 21]>
  net (float[4,6] x, float[4,6] z) => (float[4,6] y, float[4,6] other)
  <float[6,6] w = {1,2,3,4,5,6,1,2,3,4,5,6,1,2,3,4,5,6,1,2,3,4,5,6,1,2,3,4,5,6,1,2,3,4,5,6}, float[6] b = {1,2,3,4,5,6}>
  { h = MatMul (x, w) a = Add (h, b) r = Relu (a) s = Softmax (r) y = Mul (s, z) e = Exp (z) other = Neg (e) })";

// ---- Passes by name

TEST(PassRegistry, NamesAreUniqueAndEachPassIsDescribed) {
  std::set<std::string> names, pipelines;
  for (const RegisteredPass& pass : all_passes({})) {
    EXPECT_TRUE(names.insert(pass.row.pass.name).second) << pass.row.pass.name;
    EXPECT_NE(pass.row.what, "") << pass.row.pass.name;
    pipelines.insert(pass.pipeline);
  }
  EXPECT_EQ(pipelines, (std::set<std::string>{"import", "adapt", "training", "entry", "lowering"}));
  EXPECT_GT(names.size(), 90u);
}

std::string refusal(const std::vector<std::string>& passes) {
  Model model = from_text(kNetwork);
  try {
    run_passes(&model, {passes, {}});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PassRegistry, AnUnknownNameAndAMissingOptionAreErrors) {
  EXPECT_THAT(refusal({"simplfy"}),
              testing::AllOf(HasSubstr("there is no pass 'simplfy'"), HasSubstr("did you mean 'simplify'?")));
  EXPECT_EQ(refusal({"join"}), "the pass 'join' needs --join");
  EXPECT_EQ(refusal({"make_stage"}), "the pass 'make_stage' needs --pipeline of several processes");
  EXPECT_EQ(refusal({"simplify"}), "no error");
}

// Passes rely on what import has checked.
TEST(PassRegistry, ANodeThatItsSchemaDoesNotAllowIsRefused) {
  Model model =
      from_text(R"(<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = Add (x) })");
  EXPECT_THROW(run_passes(&model, {{"recognize"}, {}}), Error);
}

TEST(PassRegistry, AHeaderSetsOptionsUpToTheModel) {
  PassSettings settings;
  const std::vector<CommandOption> options = pass_options(&settings);
  read_header("# passes: training_mode,loss\n# loss: mse(y, t)\n# A sentence: of any kind.\n<ir>\n# seed: 3\n",
              options);
  EXPECT_EQ(settings.passes, (std::vector<std::string>{"training_mode", "loss"}));
  EXPECT_EQ(settings.build.build.loss, "mse(y, t)");
  EXPECT_EQ(settings.build.build.seed, 0u);
  EXPECT_THROW(read_header("# lost: mse\n", options), UsageError);
}

// The steps of an import one after the other are the import.
TEST(PassRegistry, ImportByNamesIsImport) {
  PassSettings settings;
  for (const RegisteredPass& pass : all_passes({})) {
    if (pass.pipeline == "import") settings.passes.push_back(pass.row.pass.name);
  }
  EXPECT_GT(settings.passes.size(), 30u);
  Model model = from_text(kNetwork);
  run_passes(&model, settings);
  onnx::ModelProto proto;
  to_proto(from_text(kNetwork), &proto);
  EXPECT_EQ(to_text(model), to_text(import_model(proto)));
}

// ---- Dumps

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Runs the passes with dumps into `folder`, and returns the message of the error.
std::string failure(const std::string& folder, const std::vector<Pass>& passes) {
  std::filesystem::remove_all(folder);
  Model model = from_text(kNetwork);
  try {
    run_pipeline(passes, &model, {.dump_dir = folder});
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(FailedPass, LeavesTheModelBeforeItAndSaysHowItRunsAlone) {
  const std::string folder = testing::TempDir() + "failed_pass";
  const Pass nothing{"nothing", [](Model&) { return false; }};
  const Pass broken{"broken", [](Model& model) -> bool {
                      model.graph->set_outputs({});
                      fail("[Broken] no output");
                    }};
  const Pass fault{"fault", [](Model&) -> bool { throw std::out_of_range("index 7"); }};
  EXPECT_EQ(failure(folder, {nothing, broken}),
            concat("[Broken] no output; the pass alone: onnx-train opt ", folder,
                   "/01_nothing.onnx -o after.onnx --passes broken, with the options of this command"));
  EXPECT_EQ(files_in(folder), (std::vector<std::string>{"01_nothing.onnx", "01_nothing.txt"}));
  EXPECT_EQ(to_text(load_model(folder + "/01_nothing.onnx")), to_text(from_text(kNetwork)));
  EXPECT_THAT(failure(folder, {fault}), testing::StartsWith(concat("[fault] index 7; the pass alone: onnx-train opt ",
                                                                   folder, "/00_input.onnx")));
  EXPECT_EQ(files_in(folder), (std::vector<std::string>{"00_input.onnx", "00_input.txt"}));
}

// Imports, runs the passes, and returns the message of the fault.
std::string kept_fault(const std::vector<Pass>& passes, const PipelineOptions& options = {}) {
  try {
    keeping_faults(options, [&](const PipelineOptions& pipeline) {
      Model model = from_text(kNetwork);
      run_pipeline(passes, &model, pipeline);
      return model;
    });
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Another folder for temporary files, which is empty.
class KeptFault : public testing::Test {
 protected:
  KeptFault() : variable_("TMPDIR", folder_) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  const std::string folder_ = testing::TempDir() + "kept_fault";

 private:
  ScopedVariable variable_;
};

const Pass kRename{"rename", [](Model& model) {
                     model.graph->rename(model.graph->find("a"), "sum");
                     return true;
                   }};
const Pass kBug{"bug", [](Model& model) -> bool {
                  model.graph->set_outputs({});
                  throw std::out_of_range("index 7");
                }};

TEST_F(KeptFault, TheModelBeforeThePassIsInAFile) {
  const std::string message = kept_fault({kRename, kBug});
  EXPECT_THAT(message, testing::StartsWith(concat("[bug] index 7; this is a bug of onnx-train, which this shows: "
                                                  "onnx-train opt ",
                                                  folder_, "/onnx-train-fault-")));
  EXPECT_THAT(message,
              testing::EndsWith("/before_bug.onnx -o after.onnx --passes bug, with the options of this command"));
  ASSERT_EQ(files_in(folder_).size(), 1u);
  const std::string kept = concat(folder_, "/", files_in(folder_)[0]);
  EXPECT_EQ(files_in(kept), std::vector<std::string>{"before_bug.onnx"});
  Model expected = from_text(kNetwork);
  kRename.run(expected);
  EXPECT_EQ(to_text(load_model(kept + "/before_bug.onnx")), to_text(expected));
  const auto mode = std::filesystem::status(kept).permissions();
  EXPECT_EQ(mode & (std::filesystem::perms::group_all | std::filesystem::perms::others_all),
            std::filesystem::perms::none);
}

// Values that are still read are removed by a bug alone, and a model that is not valid comes of one.
TEST_F(KeptFault, BugsThatAreErrorsAreKeptToo) {
  const Pass removes{"removes", [](Model& model) {
                       model.graph->remove(model.graph->find("h")->producer());
                       return true;
                     }};
  EXPECT_THAT(kept_fault({removes}), HasSubstr("before_removes.onnx"));
  const Pass breaks{"breaks", [](Model& model) {
                      model.graph->find("r")->producer()->set_op("Sofmax");
                      return true;
                    }};
  EXPECT_EQ(kept_fault({breaks}), "no error");
  EXPECT_THAT(kept_fault({breaks}, {.verify = true, .dump_dir = ""}), HasSubstr("before_breaks.onnx"));
}

TEST_F(KeptFault, WhatAUserDoesWrongLeavesNoFile) {
  const Pass refuses{"refuses", [](Model&) -> bool { fail("[Refuses] the operator 'X' has no gradient"); }};
  const Pass usage{"usage", [](Model&) -> bool { throw UsageError("take another --loss"); }};
  EXPECT_EQ(kept_fault({kRename, refuses}), "[Refuses] the operator 'X' has no gradient");
  EXPECT_EQ(kept_fault({usage}), "take another --loss");
  EXPECT_EQ(files_in(folder_), std::vector<std::string>());
}

TEST_F(KeptFault, WithoutAFolderForFilesTheFaultIsSaid) {
  const ScopedVariable nowhere("TMPDIR", folder_ + "/missing");
  EXPECT_EQ(kept_fault({kBug}), "[bug] index 7; this is a bug of onnx-train");
}

// A fault that is not there the second time leaves nothing behind.
TEST_F(KeptFault, AFaultThatDoesNotComeAgainLeavesNoFile) {
  int runs = 0;
  const Pass first{"first", [&](Model&) -> bool {
                     if (++runs == 1) throw std::logic_error("once");
                     fail("another error before the pass");
                   }};
  const Pass second{"second", [&](Model&) -> bool { return false; }};
  EXPECT_THAT(kept_fault({second, first}), HasSubstr("before_first.onnx"));
  runs = 0;
  const Pass earlier{"earlier", [&](Model&) -> bool {
                       if (runs > 0) fail("another error before the pass");
                       return false;
                     }};
  std::filesystem::remove_all(folder_);
  std::filesystem::create_directories(folder_);
  EXPECT_EQ(kept_fault({earlier, first}), "[first] once; this is a bug of onnx-train");
  EXPECT_EQ(files_in(folder_), std::vector<std::string>());
}

TEST(Dumps, OfImportAndOfWhatAdaptsAModelAreInFoldersOfTheirOwn) {
  const std::string folder = testing::TempDir() + "dumps";
  std::filesystem::remove_all(folder);
  onnx::ModelProto proto;
  to_proto(from_text(kNetwork), &proto);
  ImportOptions options;
  options.adapt.cut = {"r"};
  import_forward_model({proto, {}}, "float32", options, nullptr, {.dump_dir = folder});
  EXPECT_EQ(files_in(folder), (std::vector<std::string>{"adapt", "import"}));
  EXPECT_EQ(files_in(folder + "/adapt"), (std::vector<std::string>{"01_cut.onnx", "01_cut.txt"}));
  EXPECT_EQ(files_in(folder + "/import").front(), "01_choose_outputs.onnx");
  EXPECT_TRUE(files_in(folder + "/import").back().ends_with("_set_versions.txt"));
}

// ---- Pages

std::string text_of(const std::vector<DiffLine>& lines) {
  std::string text;
  for (const DiffLine& line : lines) text += concat(std::string(1, line.kind), line.text, "\n");
  return text;
}

TEST(TextDiff, ShowsLinesThatDifferWithThoseAroundThem) {
  EXPECT_TRUE(diff_lines("a\nb\n", "a\nb\n").empty());
  EXPECT_EQ(text_of(diff_lines("1\n2\n3\n4\n5\n6\n", "1\n2\n3\nx\n5\n6\n", 1)), "@line 3\n 3\n-4\n+x\n 5\n");
  EXPECT_EQ(text_of(diff_lines("a\nb\n", "b\na\n", 0)), "@line 1\n-a\n@line 2\n+a\n");
  EXPECT_EQ(text_of(diff_lines("", "a\n")), "@line 1\n+a\n");
  // Lines without a unique one between them.
  EXPECT_EQ(text_of(diff_lines("}\n{\n}\n", "{\n}\n{\n}\n}\n", 0)), "@line 1\n+{\n@line 4\n+}\n");
}

TEST(PassPage, HasASectionForEachPassAndEscapesNames) {
  Model model = from_text(kNetwork);
  PassPage page;
  const Pass nothing{"nothing", [](Model&) { return false; }};
  const Pass names{"names", [](Model& m) {
                     m.graph->rename(m.graph->find("h"), "<script>alert('\"&')</script>");
                     return true;
                   }};
  run_pipeline({nothing, names, {"simplify", simplify}}, &model,
               {.dump_dir = "", .observe = [&](const PassTiming* pass, const Model& m) { page.observe(pass, m); }});
  const std::string html = page.html("a<b", all_passes({}));
  EXPECT_EQ(page.passes(), 3u);
  EXPECT_EQ(page.changes(), 1u);
  EXPECT_THAT(html, HasSubstr("<title>a&lt;b</title>"));
  EXPECT_THAT(html, HasSubstr("<details class=\"same\"><summary><b>nothing</b>"));
  EXPECT_THAT(html, HasSubstr("<details open><summary><b>names</b>"));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(&#39;"));
  EXPECT_THAT(html, testing::Not(HasSubstr("<script")));
  EXPECT_THAT(html, testing::Not(HasSubstr("http")));
  EXPECT_THAT(html, HasSubstr("<h2>training</h2>"));
  EXPECT_THAT(html, HasSubstr("folds constants, merges equal nodes, removes dead ones"));
}

TEST(PassPage, LongLinesAndLongSectionsAreCut) {
  Model model = from_text(kNetwork);
  PassPage page;
  const Pass longer{"longer", [](Model& m) {
                      m.graph->rename(m.graph->find("h"), std::string(5000, 'n'));
                      Value* x = m.graph->find("r");
                      for (int i = 0; i < 3000; ++i) x = m.graph->add_node("Neg", {x}, {concat("n", i)})->output();
                      m.graph->add_output(x);
                      return true;
                    }};
  run_pipeline({longer}, &model,
               {.dump_dir = "", .observe = [&](const PassTiming* pass, const Model& m) { page.observe(pass, m); }});
  const std::string html = page.html("long", {});
  EXPECT_LT(html.size(), 400'000u);
  EXPECT_THAT(html, HasSubstr(" more characters"));
  EXPECT_THAT(html, HasSubstr(" more lines"));
}

// From the file to the plan.
TEST(PassPage, AllPipelinesRunInTheirOrder) {
  const std::string file = testing::TempDir() + "all_pipelines.onnx";
  save_model(from_text(kNetwork), file);
  PassSettings settings;
  settings.build.build.loss = "mse(y)";
  std::vector<std::string> names;
  run_all_pipelines(file, settings, [&](const PassTiming* pass, const Model&) {
    if (pass) names.push_back(pass->name);
  });
  std::string pipelines;
  std::map<std::string, std::string> of;
  for (const RegisteredPass& pass : all_passes(settings)) of[pass.row.pass.name] = pass.pipeline;
  for (const std::string& name : names) {
    if (!pipelines.ends_with(of.at(name))) pipelines += " " + of.at(name);
  }
  EXPECT_EQ(pipelines, " import training entry lowering");
  EXPECT_EQ(names.back(), "order_nodes");
}

// ---- Reduction

onnx::ModelProto network() {
  onnx::ModelProto proto;
  to_proto(from_text(kNetwork), &proto);
  return proto;
}

bool has_op(const onnx::ModelProto& model, const std::string& op) {
  const auto& nodes = model.graph().node();
  return std::any_of(nodes.begin(), nodes.end(), [&](const auto& node) { return node.op_type() == op; });
}

TEST(Reduce, KeepsTheNodeWithTheFault) {
  onnx::ModelProto model = network();
  const ReduceReport report = reduce(
      &model, [](const onnx::ModelProto& candidate) { return has_op(candidate, "Softmax"); }, 500);
  EXPECT_EQ(report.nodes_before, 7);
  EXPECT_EQ(report.nodes_after, 1);
  EXPECT_FALSE(report.is_exhausted);
  EXPECT_LT(report.tries, 100);
  EXPECT_NO_THROW(check_proto(model));
  ASSERT_EQ(model.graph().input_size(), 1);
  EXPECT_EQ(model.graph().initializer_size(), 0);
  EXPECT_EQ(model.graph().output_size(), 1);
}

// The fault is of two nodes that are apart, and of a weight: values and sizes do not matter.
TEST(Reduce, ZeroesAndShrinksWhatTheFaultNeeds) {
  onnx::ModelProto model = network();
  reduce(
      &model, [](const onnx::ModelProto& m) { return has_op(m, "MatMul") && m.graph().initializer_size() > 0; }, 500);
  EXPECT_NO_THROW(check_proto(model));
  ASSERT_EQ(model.graph().node_size(), 1);
  ASSERT_EQ(model.graph().initializer_size(), 1);
  const Tensor weight = constant_of(from_proto(model).graph->initializers()[0]);
  EXPECT_EQ(weight.shape(), (Shape{1, 1}));
  EXPECT_EQ(weight.at(0), 0);
}

TEST(Reduce, TriesAreBounded) {
  onnx::ModelProto model = network();
  const ReduceReport report = reduce(
      &model, [](const onnx::ModelProto& candidate) { return has_op(candidate, "Softmax"); }, 3);
  EXPECT_EQ(report.tries, 3);
  EXPECT_TRUE(report.is_exhausted);
  EXPECT_TRUE(has_op(model, "Softmax"));
}

// Numbers of a message may change; another message or no error is another failure.
TEST(Reduce, ACommandFailsInTheSameWay) {
  const std::string file = testing::TempDir() + "reduce.onnx", small = testing::TempDir() + "reduced.onnx";
  save_proto(network(), file);
  const std::string command =
      "f() { if grep -q Softmax \"$1\"; then echo fault in $(wc -c < \"$1\") bytes >&2; exit 3; "
      "elif grep -q Relu \"$1\"; then echo another fault >&2; exit 3; fi; }; f";
  EXPECT_EQ(reduce_file(file, small, command, 500).nodes_after, 1);
  EXPECT_TRUE(has_op(load_proto(small), "Softmax"));
  EXPECT_THROW(reduce_file(file, small, "true", 500), Error);
}

}  // namespace
}  // namespace onnx_train::opt_test
