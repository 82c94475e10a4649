// Sessions on a device whose work is done later, by another thread, in memory of its own.
#include <gtest/gtest.h>

#include <cstdlib>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "runtime/training/trainer.h"
#include "tests/support/async_host_device.h"
#include "tests/support/device_network.h"
#include "tests/support/sessions.h"

namespace onnx_train::async_host_test {
namespace {

TEST(AsyncHost, AThousandReplaysEqualAThousandStepsOfTheCpuToTheBit) {
  AsyncHostDevice device({.most_microseconds = 5});
  const Model model = network();
  Session session(clone(model), on(&device)), expected(clone(model), on(&Device::cpu()));
  for (int i = 0; i < 1002; ++i) {
    const double loss = session.run("step", batch()).at("loss").at(0);
    ASSERT_EQ(loss, expected.run("step", batch()).at("loss").at(0)) << i;
  }
  EXPECT_GE(device.replays(), 1000);
  expect_equal(states_of(session), states_of(expected));
}

TEST(AsyncHost, AStepWithALabelOutOfRangeLeavesTheStateAsItWas) {
  for (const bool records : {false, true}) {
    AsyncHostDevice device({.most_microseconds = 5, .records = records});
    Session session(network(), on(&device));
    for (int i = 0; i < 3; ++i) {
      session.run("step", batch());
      const auto before = states_of(session);
      try {
        session.run("step", batch(99));
        ADD_FAILURE() << "a label of 99 is taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorCode::kData);
        EXPECT_NE(std::string(error.what()).find("label 99"), std::string::npos) << error.what();
      }
      expect_equal(states_of(session), before);
    }
  }
}

TEST(AsyncHost, RunsThatAreStartedAheadGiveTheResultsOfRunsOneByOne) {
  AsyncHostDevice device;
  const Model model = network();
  Session session(clone(model), on(&device)), expected(clone(model), on(&Device::cpu()));
  std::vector<double> losses, ahead;
  for (int i = 0; i < 12; ++i) losses.push_back(expected.run("step", batch(i)).at("loss").at(0));
  session.start("step", batch(0));
  for (int i = 1; i <= 12; ++i) {
    if (i < 12) session.start("step", batch(i));
    ahead.push_back(session.finish().at("loss").at(0));
  }
  EXPECT_EQ(ahead, losses);
  expect_equal(states_of(session), states_of(expected));
  EXPECT_THROW(session.finish(), Error);
  session.start("evaluate", batch());
  EXPECT_THROW(session.run("step", batch()), Error);
}

TEST(AsyncHost, WhatIsStartedAfterAStepWithAFaultChangesNothing) {
  for (const bool host : {true, false}) {
    AsyncHostDevice device;
    Session session(network(), on(host ? &Device::cpu() : &device));
    for (int i = 0; i < 3; ++i) {
      session.run("step", batch());
      const auto before = states_of(session);
      session.start("step", batch(99));
      session.start("step", batch());
      session.start("evaluate", batch());
      EXPECT_THROW(session.finish(), Error);
      expect_equal(states_of(session), before);
    }
  }
}

TEST(AsyncHost, ALabelOutOfRangeInDeviceMemoryIsNamed) {
  AsyncHostDevice device;
  Session session(network(), on(&device));
  const DeviceCopies good(device, batch()), bad(device, batch(99));
  session.run("step", good.tensors());
  const auto before = states_of(session);
  try {
    session.run("step", bad.tensors());
    ADD_FAILURE() << "a label of 99 is taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorCode::kData);
    EXPECT_NE(std::string(error.what()).find("label 99"), std::string::npos) << error.what();
  }
  expect_equal(states_of(session), before);
}

TEST(AsyncHost, InputsInDeviceMemoryMayBeFreedOnceTheyAreRead) {
  AsyncHostDevice device;
  const Model model = network();
  Session session(clone(model), on(&device)), expected(clone(model), on(&Device::cpu()));
  for (int i = 0; i < 12; ++i) {
    {
      const DeviceCopies copies(device, batch(i));
      session.start("step", copies.tensors());
      session.wait_for_inputs();
    }
    expected.run("step", batch(i));
    if (i > 0) session.finish();
  }
  session.finish();
  expect_equal(states_of(session), states_of(expected));
}

// Streams of the device, whose copies from the host fail once `fails` is set. They run no kernels.
class FailingCopies : public AsyncHostDevice {
 public:
  using AsyncHostDevice::AsyncHostDevice;
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<FailingStream>(AsyncHostDevice::make_stream(), &fails);
  }

  bool fails = false;

 private:
  class FailingStream : public Stream {
   public:
    FailingStream(std::unique_ptr<Stream> stream, const bool* fails) : stream_(std::move(stream)), fails_(*fails) {}
    void copy_from_host(void* to, const void* from, size_t bytes) override {
      if (fails_) fail("this copy of a test fails");
      stream_->copy_from_host(to, from, bytes);
    }
    void copy_to_host(void* to, const void* from, size_t bytes) override { stream_->copy_to_host(to, from, bytes); }
    void copy(const Transfer& transfer) override { stream_->copy(transfer); }
    void commit(const std::vector<Transfer>&, const Fault*) override {}
    void synchronize() override { stream_->synchronize(); }
    int64_t mark() override { return stream_->mark(); }
    void wait(int64_t mark) override { stream_->wait(mark); }
    std::unique_ptr<Recording> record(const std::function<void()>&) override { return nullptr; }

   private:
    const std::unique_ptr<Stream> stream_;
    const bool& fails_;
  };
};

TEST(AsyncHost, InputsInDeviceMemoryMayBeFreedAfterAStartThatFails) {
  FailingCopies device({.most_microseconds = 1000});
  Session session(network(), on(&device));
  session.plan("evaluate", shapes_of(batch()));
  for (int i = 0; i < 50; ++i) {
    const DeviceCopies copies(device, batch());
    for (const char* on_host : {"tokens", "labels"}) {
      TensorMap inputs = copies.tensors();
      inputs[on_host] = batch().at(on_host);
      device.fails = true;
      EXPECT_THROW(session.start("evaluate", inputs), Error);
      device.fails = false;
    }
  }
}

TEST(AsyncHost, NothingIsLeftAllocated) {
  AsyncHostDevice device;
  {
    Session session(network(), on(&device));
    session.run("step", batch());
    session.start("evaluate", batch());  // never finished
    EXPECT_GT(device.held(), 0u);
  }
  EXPECT_EQ(device.held(), 0u);
}

// Batches of 4 texts of 2, 3, ... 6 tokens.
class LongerTexts : public BatchSource {
 public:
  void start(int64_t /*epoch*/, int64_t /*skip*/) override { length_ = 1; }
  int64_t next(TensorMap* batch) override {
    if (++length_ > 6) return 0;
    for (const char* name : {"tokens", "labels"}) (*batch)[name] = Tensor(DType::kInt64, {4, length_});
    return 4;
  }

 private:
  int64_t length_ = 1;
};

// Two batches make a step, and are read before the step before is complete.
TEST(AsyncHost, AStepCountsTheTokensOfItsOwnBatches) {
  struct Tokens : TrainerEvents {
    std::vector<int64_t> counts;
    void on_step(const StepReport& r) override { counts.push_back(r.tokens); }
  } seen;
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    lm (int64[texts, length] tokens) => (float[texts, length, 2] logits) <float[2, 2] table = {1, 2, 3, 4}> {
      logits = Gather(table, tokens)
    })");
  BuildOptions build;
  build.loss = "cross_entropy(logits, labels, axis=2)";
  build.optimizer = "sgd";
  build.accumulate = true;
  build_training_model(&model, build);
  AsyncHostDevice device;
  Session session(std::move(model), on(&device));
  TrainerOptions options;
  options.epochs = 1;
  options.accumulate = 2;
  const std::atomic<bool> interrupt{false};
  Trainer(&session, std::make_unique<LongerTexts>(), nullptr, options).run(&seen, interrupt);
  EXPECT_EQ(seen.counts, (std::vector<int64_t>{4 * (2 + 3), 4 * (4 + 5), 4 * 6}));
}

}  // namespace
}  // namespace onnx_train::async_host_test
