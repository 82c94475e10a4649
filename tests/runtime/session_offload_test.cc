// --offload optimizer, on the chosen device where it has memory of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/mixed_precision.h"
#include "runtime/models/build_settings.h"
#include "runtime/session/session.h"
#include "tests/support/device_network.h"
#include "tests/support/sessions.h"

namespace onnx_train::session_offload_test {
namespace {

using testing::HasSubstr;

struct Build {
  const char *optimizer, *precision = "float32";
  double ema = 0;
  bool accumulate = false, tf32 = false;
};

Model training_model(const Build& build) {
  Model model = make_transformer({.blocks = 1, .width = 32, .tokens = kDeviceTestTokens});
  BuildOptions options;
  options.optimizer = build.optimizer;
  options.precision = parse_precision(build.precision);
  options.ema = build.ema;
  options.accumulate = build.accumulate;
  build_training_model(&model, options);
  return model;
}

SessionOptions offloading(bool tf32 = false) {
  SessionOptions options;
  options.offload = Offload::kOptimizer;
  options.plan.arithmetic.tf32 = tf32;
  return options;
}

// The loss of the last batch of a step.
double step(Session& session, int64_t number) {
  if (session.has_entry("step")) return session.run("step", batch(number)).at("loss").at(0);
  session.run("accumulate", batch(number));
  const double loss = session.run("accumulate", batch(number + 1)).at("loss").at(0);
  session.run("apply", {});
  return loss;
}

TEST(SessionOffload, TheCpuHasTheStatesWhereTheyWouldGo) {
  SessionOptions options = offloading();
  options.device = &Device::cpu();
  try {
    Session session(training_model({"sgd"}), options);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("where cpu has them; leave it out"));
  }
}

class SessionOffloadOf : public testing::TestWithParam<Build> {
 protected:
  void SetUp() override {
    if (!default_device().name().starts_with("cuda")) GTEST_SKIP() << "the device's memory is the host's";
  }
};

TEST_P(SessionOffloadOf, EveryBitIsThatOfStatesOnTheDevice) {
  const Model model = training_model(GetParam());
  SessionOptions options;
  options.plan.arithmetic.tf32 = GetParam().tf32;
  Session expected(clone(model), options), session(clone(model), offloading(GetParam().tf32));
  ASSERT_GT(session.state().host_bytes(), 0u);
  EXPECT_EQ(session.state().bytes() + session.state().host_bytes(), expected.state().bytes());
  EXPECT_EQ(session.state_bytes(), expected.state_bytes());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(session, i), step(expected, i)) << "step " << i;
  expect_equal(states_of(session), states_of(expected));
  EXPECT_EQ(session.run("evaluate", batch()).at("loss").at(0), expected.run("evaluate", batch()).at("loss").at(0));

  // Training goes on with the other choice, from the states' values.
  Session back(session.snapshot(), options), there(expected.snapshot(), offloading(GetParam().tf32));
  EXPECT_EQ(step(back, 3), step(there, 3));
  expect_equal(states_of(back), states_of(there));
}

// The second label does not exist: no update of the first run after it may write.
TEST_P(SessionOffloadOf, AFaultLeavesTheStatesAsTheyWere) {
  Session session(training_model(GetParam()), offloading(GetParam().tf32));
  step(session, 1);
  const auto before = states_of(session);
  const std::string entry = session.has_entry("step") ? "step" : "accumulate";
  session.start(entry, batch(99));
  if (entry == "step") session.start(entry, batch(2));
  EXPECT_THROW(session.finish(), Error);
  expect_equal(states_of(session), before);
  step(session, 2);
  EXPECT_GT(states_of(session).at("state/step").at(0), before.at("state/step").at(0));
}

std::string name_of(const testing::TestParamInfo<Build>& info) {
  const Build& b = info.param;
  std::string name = concat(b.optimizer, "_", b.precision, b.ema > 0 ? "_ema" : "", b.accumulate ? "_accumulate" : "",
                            b.tf32 ? "_tf32" : "");
  std::erase_if(name, [](unsigned char c) { return !std::isalnum(c) && c != '_'; });
  return name;
}

INSTANTIATE_TEST_SUITE_P(Builds, SessionOffloadOf,
                         testing::Values(Build{"adamw"}, Build{"sgd(momentum=0.9)"},
                                         Build{"adamw8bit(min_8bit_size=1)"}, Build{"lamb"},
                                         Build{"adamw", "float32", 0.9}, Build{"adamw", "float32", 0, true},
                                         Build{"adamw", "bf16"}, Build{"adamw", "fp16"},
                                         Build{"adamw", "float32", 0, false, true}),
                         name_of);

TEST(SessionOffload, AStateIsReadWrittenAndExchangedAtItsAddress) {
  if (!default_device().name().starts_with("cuda")) GTEST_SKIP() << "the device's memory is the host's";
  const Model model = training_model({"adamw"});
  Session session(clone(model), offloading()), other(clone(model));
  step(session, 1);
  step(other, 2);
  std::string name;
  for (size_t i = 0; i < session.state_names().size(); ++i) {
    if (session.state().memory(i) == StateMemory::kHost) name = session.state_names()[i];
  }
  const std::map<std::string, Tensor> mine = {{name, session.state().get(name)}},
                                      theirs = {{name, other.state().get(name)}};
  session.state().exchange(name, &other.state());
  expect_equal({{name, session.state().get(name)}}, theirs);
  expect_equal({{name, other.state().get(name)}}, mine);
  const DeviceCopies copies(session.device(), mine);
  session.state().set(name, copies.tensors().at(name));
  expect_equal({{name, session.state().get(name)}}, mine);
  const size_t i = session.state().index(name), j = other.state().index(name);
  other.state().write_from_device(j, session.state().data(i));
  expect_equal({{name, other.state().get(name)}}, mine);
}

}  // namespace
}  // namespace onnx_train::session_offload_test
