// A C++ program with the installed library: what onnx_train.hpp adds to the examples, and what it throws.
#include <onnx_train/onnx_train.hpp>

#include <cmath>
#include <cstdio>
#include <cstdlib>

using namespace onnx_train;

namespace {

#define EXPECT(condition)                                         \
  do {                                                            \
    if (!(condition)) {                                           \
      std::printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                               \
    }                                                             \
  } while (0)

// Whether `f` throws an Error with this status and text.
template <typename F>
bool throws(onnx_train_status status, const std::string& text, const F& f) {
  try {
    f();
  } catch (const Error& error) {
    if (error.status() == status && std::string(error.what()).find(text) != std::string::npos) return true;
    std::printf("thrown: %d, %s\n", error.status(), error.what());
  }
  return false;
}

void test_models(const Model& forward) {
  const Report good = forward.check();
  EXPECT(good.failure.empty() && good.obstacles.empty() && good.loss == "cross_entropy");
  EXPECT(good.text.find("It can be trained") != std::string::npos);
  EXPECT(throws(ONNX_TRAIN_UNSUPPORTED, "no such weight", [&] { forward.check({{"train", "no such weight"}}); }));
  EXPECT(throws(ONNX_TRAIN_USAGE, "did you mean", [&] { forward.check({{"los", "mse"}}); }));
  try {
    forward.check({{"los", "mse"}});
  } catch (const Error& error) {
    EXPECT(error.code() == "OT6002");
  }

  const std::vector<double> bias = {1, 2, 3};
  const Model changed = forward.with_weights({{"fc2.bias", {3}, bias}});
  Session session(changed.build({{"loss", "cross_entropy"}, {"optimizer", "sgd"}}));
  EXPECT(session.get("fc2.bias") == (std::vector<float>{1, 2, 3}));
  EXPECT(throws(ONNX_TRAIN_DATA, "no weight 'fc9'", [&] { forward.with_weights({{"fc9", {3}, bias}}); }));
  forward.with_weights({{"fc9", {3}, bias}}, false);

  EXPECT(throws(ONNX_TRAIN_UNSUPPORTED, "no adapters", [&] { changed.build().export_inference({{"merge", "true"}}); }));
  EXPECT(throws(ONNX_TRAIN_USAGE, "names the model", [&] { changed.build().export_into("into.onnx", {}); }));
  const std::vector<float> short_data(3);
  EXPECT(throws(ONNX_TRAIN_DATA, "'x' has the shape [5, 4] and 3 elements", [&] { Input("x", {5, 4}, short_data); }));
  EXPECT(throws(ONNX_TRAIN_DATA, "3 elements", [&] { Input("x", {int64_t{1} << 62, 4}, short_data); }));
  EXPECT(throws(ONNX_TRAIN_UNSUPPORTED, "loss", [&] { forward.derivative("gradient", forward); }));  // no scalar

  EXPECT(learning_rate(3, {{"lr", "0.5"}, {"schedule", "constant"}}) == 0.5);
  EXPECT(options_of("fit").find("epochs\tinteger\tN\tpasses over the data\n") != std::string::npos);
  EXPECT(throws(ONNX_TRAIN_USAGE, "no options are known of 'fitt'", [] { options_of("fitt"); }));
  EXPECT(throws(ONNX_TRAIN_USAGE, "step-every", [] { learning_rate(0, {{"schedule", "step"}}); }));
}

void test_roles(const Model& forward, const Options& device) {
  Session session(forward.build({{"loss", "cross_entropy"}, {"optimizer", "adamw"}}), device);
  const auto is_moment = [](const onnx_train_port& state) {
    return std::string(state.role) == "exp_avg" && std::string(state.of) == "fc2.bias";
  };
  size_t moments = 0;
  for (const onnx_train_port& state : session.state_ports()) {
    if (!is_moment(state)) continue;
    ++moments;
    EXPECT(state.rank == 1 && state.shape[0] == 3 && !state.data && session.get(state.name).size() == 3);
  }
  EXPECT(moments == 1 && session.state_ports().size() == session.states().size());
  // The loss of a model that has a value called "loss".
  float value = 2;
  const onnx_train_tensor tensor = {"loss_1", ONNX_TRAIN_FLOAT, 0, nullptr, &value, ONNX_TRAIN_HOST_MEMORY};
  const onnx_train_port port = {"loss_1", "loss", "", ONNX_TRAIN_FLOAT, 0, nullptr, nullptr};
  const Outputs outputs(&tensor, 1, &port, 1);
  EXPECT(outputs.scalar("loss") == 2 && outputs.scalar("loss_1") == 2);
  EXPECT(throws(ONNX_TRAIN_USAGE, "'accuracy'", [&] { outputs.at("accuracy"); }));
}

// Gradients of the two passes against those that plain SGD subtracts in one step.
void test_passes(const Model& forward, const Options& device) {
  const std::vector<float> x = {0.5f, -1, 2, 0.25f, 1, 1, -1, 0};
  const Passes passes = forward.differentiate();
  Session first(passes.forward, device), second(passes.backward, device);
  const std::vector<float> dy = {1, 0, 0, 0, 1, 0};
  std::vector<std::vector<char>> memory;  // what the forward pass gives, kept for the backward pass
  std::vector<Input> inputs;
  const Outputs given = first.run("predict", {{"x", {2, 4}, x}});
  for (const onnx_train_port& port : second.inputs("predict")) {
    const std::vector<int64_t> logits_shape = {2, 3};
    if (std::string(port.role) == "dy") {
      inputs.push_back({port.name, logits_shape, dy});
      continue;
    }
    if (std::string(port.name) == "x") {
      inputs.push_back({"x", {2, 4}, x});
      continue;
    }
    for (const onnx_train_tensor& value : given) {
      if (std::string(value.name) != port.name) continue;
      const std::vector<int64_t> shape(value.shape, value.shape + value.rank);
      inputs.push_back({value.name, value.type, shape, value.data});
    }
    for (const onnx_train_port& weight : first.inputs("predict")) {
      if (std::string(weight.name) != port.name) continue;
      const std::vector<int64_t> shape(weight.shape, weight.shape + weight.rank);
      inputs.push_back({weight.name, weight.type, shape, weight.data});
    }
  }
  const Outputs gradients = second.run("predict", inputs);
  bool found = false;
  const List<onnx_train_port> ports = second.outputs("predict");
  for (const onnx_train_port& port : ports) {
    if (std::string(port.of) != "fc2.bias") continue;
    // The bias of the last layer is added to each row: its gradient is the sum of dy over the rows.
    const float* gradient = gradients.data<float>(port.name);
    EXPECT(gradient[0] == 1 && gradient[1] == 1 && gradient[2] == 0);
    found = true;
  }
  EXPECT(found);
}

void test_session(const Model& forward, const Options& device) {
  Session session(forward.build({{"loss", "cross_entropy"}, {"optimizer", "sgd"}}), device);
  EXPECT(session.entries().size() == 3 && std::string(session.entries()[0]) == "predict");
  EXPECT(session.inputs("step").size() == 4 && std::string(session.outputs("step")[0].role) == "loss");
  EXPECT(throws(ONNX_TRAIN_USAGE, "stp", [&] { session.inputs("stp"); }));

  const Plan plan = session.plan("step", {{"batch", "2"}});
  EXPECT(plan.arena_bytes > 0 && plan.json.find("\"kernel\"") != std::string::npos && plan.text.size() > 100);
  EXPECT(throws(ONNX_TRAIN_USAGE, "stp", [&] { session.plan("stp"); }));

  EXPECT(session.device().type == (device.empty() ? 1 : 12));
  if (!device.empty()) {
    EXPECT(throws(ONNX_TRAIN_DEVICE, "fc2.bias", [&] { session.data("fc2.bias"); }));
    return;
  }
  session.data("fc2.bias")[1] = 7;
  EXPECT(session.get("fc2.bias")[1] == 7);
  EXPECT(throws(ONNX_TRAIN_USAGE, "another element type", [&] { session.data<double>("fc2.bias"); }));
}

// The same batches three times, whose x is the weights of a session: on the host, or where that session has them.
class Weights : public DataSource {
 public:
  Weights(const Session& session, onnx_train_memory memory)
      : values_(session.get("fc1.weight")),
        x_(memory == ONNX_TRAIN_HOST_MEMORY ? values_.data() : session.address("fc1.weight")),
        memory_(memory) {}

  void begin(int64_t) override { left_ = 3; }
  std::vector<Input> next() override {
    if (left_-- == 0) return {};
    return {{"x", ONNX_TRAIN_FLOAT, {16, 4}, x_, memory_}, {"labels", {16}, labels_}};
  }

 private:
  std::vector<float> values_;
  std::vector<int64_t> labels_ = std::vector<int64_t>(16);
  const void* x_;
  onnx_train_memory memory_;
  int left_ = 0;
};

void test_device_memory(const Model& forward, const Options& device) {
  const Model training = forward.build({{"loss", "cross_entropy"}, {"optimizer", "sgd"}});
  const Session weights(training, device);
  Session session(training, device), expected(training, device);
  Weights on_device(weights, ONNX_TRAIN_DEVICE_MEMORY), on_host(weights, ONNX_TRAIN_HOST_MEMORY);
  train(session, on_device, {{"epochs", "2"}});
  train(expected, on_host, {{"epochs", "2"}});
  const std::vector<float> trained = session.get("fc2.weight");
  EXPECT(trained == expected.get("fc2.weight") && trained != weights.get("fc2.weight"));
  session.set_from_device("fc2.weight", weights.address("fc2.weight"), trained.size() * sizeof(float));
  EXPECT(session.get("fc2.weight") == weights.get("fc2.weight"));

  const float* const x = static_cast<const float*>(weights.address("fc1.weight"));
  const std::vector<int64_t> labels(16);
  const std::vector<Input> inputs = {{"x", {16, 4}, x, ONNX_TRAIN_DEVICE_MEMORY}, {"labels", {16}, labels}};
  Arrays arrays(inputs);
  EXPECT(throws(ONNX_TRAIN_DATA, "'x' is in device memory", [&] { train(session, arrays, {{"epochs", "1"}}); }));
}

// A pointer that is null is one, not the memory of the Input that has it.
void test_null(const Model& forward, const Options& device) {
  Session session(forward.build({{"loss", "cross_entropy"}, {"optimizer", "sgd"}}), device);
  const float* const nothing = nullptr;
  const auto run = [&](const Input& x) { session.run("predict", {x}); };
  EXPECT(throws(ONNX_TRAIN_DATA, "'x' has no data", [&] { run({"x", {2, 4}, nothing}); }));
  EXPECT(throws(ONNX_TRAIN_DATA, "'x' has no data", [&] { run({"x", ONNX_TRAIN_FLOAT, {2, 4}, nullptr}); }));
  EXPECT(throws(ONNX_TRAIN_DATA, "'x' has no data", [&] { run({"x", {}, nothing}); }));
  EXPECT(throws(ONNX_TRAIN_DATA, "'fc2.bias' has no data", [&] {
    forward.with_weights({{"fc2.bias", {3}, nothing}});
  }));
  Arrays arrays({{"x", {2, 4}, nothing}, {"labels", {2}, std::vector<int64_t>(2)}});
  EXPECT(throws(ONNX_TRAIN_DATA, "'x' has no data", [&] { train(session, arrays, {{"epochs", "1"}}); }));
  EXPECT(session.run("predict", {{"x", {0, 4}, nothing}}).at("logits").shape[0] == 0);
  EXPECT(session.run("predict", {{"x", {0, 4}, std::vector<float>()}}).at("logits").shape[0] == 0);
}

// Ends the first call after `last` steps, as a program that is interrupted does, and keeps rates and notes.
class Watching : public Observer {
 public:
  explicit Watching(int64_t last = 0) : last_(last) {}
  onnx_train_next on_step(const onnx_train_step& step) override {
    rates.push_back(step.learning_rate);
    EXPECT(step.tokens == 0 && std::isnan(step.utilization));  // no texts, and too short a training
    return step.step == last_ ? ONNX_TRAIN_INTERRUPT : ONNX_TRAIN_CONTINUE;
  }
  onnx_train_next on_note(const std::string& text) override { return notes += text + "\n", ONNX_TRAIN_CONTINUE; }

  std::vector<double> rates;
  std::string notes;

 private:
  const int64_t last_;
};

// A run goes on with its rate, schedule, seed, batches and end, where the program says nothing.
void test_resume(const Model& forward, const Options& device) {
  const Model training = forward.build({{"loss", "cross_entropy"}, {"optimizer", "adamw"}});
  std::vector<float> x(48 * 4);
  std::vector<int64_t> labels(48);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 37) % 19) / 9 - 1;
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int64_t>(i * i % 3);
  Arrays data({{"x", {48, 4}, x}, {"labels", {48}, labels}});
  Options options = {{"epochs", "2"}, {"lr", "0.05"}, {"schedule", "cosine"}, {"seed", "3"}, {"batch-size", "8"}};
  Session whole(training, device), first(training, device), second(training, device);
  options.emplace_back("out", "whole");
  Watching all, begin(6), rest;
  train(whole, data, options, nullptr, &all);
  options.back().second = "parts";
  EXPECT(train(first, data, options, nullptr, &begin) == ONNX_TRAIN_INTERRUPTED);
  EXPECT(train(second, data, {{"out", "parts"}, {"resume", "true"}}, nullptr, &rest) == ONNX_TRAIN_FINISHED);
  begin.rates.insert(begin.rates.end(), rest.rates.begin(), rest.rates.end());
  EXPECT(all.rates.size() == 12 && begin.rates == all.rates && rest.notes.empty());
  for (const std::string name : {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}) {
    EXPECT(second.get(name) == whole.get(name));
  }

  Session third(training, device);
  const std::vector<float> before = third.get("fc2.weight");
  x[5] += 1;
  const Options more = {{"out", "parts"}, {"resume", "true"}, {"epochs", "3"}};
  EXPECT(throws(ONNX_TRAIN_UNSUPPORTED, "cannot resume: data was 48 samples", [&] { train(third, data, more); }));
  EXPECT(third.get("fc2.weight") == before);
  x[5] -= 1;
  Watching changed;
  train(third, data, {{"out", "parts"}, {"resume", "true"}, {"epochs", "3"}, {"lr", "0.01"}}, nullptr, &changed);
  EXPECT(changed.notes.find("lr was 0.05 and is 0.01") != std::string::npos && changed.rates.size() == 6);
  std::FILE* const file = std::fopen("parts/options.json", "r");
  EXPECT(file && std::fclose(file) == 0);
}

// Counts the steps, and fails at the second one.
class Failing : public Observer {
 public:
  onnx_train_next on_step(const onnx_train_step& step) override {
    if (step.step == 2) throw std::runtime_error("the second step");
    return ONNX_TRAIN_CONTINUE;
  }
};

void test_files(const Model& forward, const Options& device) {
  std::FILE* file = std::fopen("data.csv", "w");
  EXPECT(file && std::fputs("a,b,labels,c,d\n1,2,0,3,4.5\n5,6,1,7,8\n9,8,2,7,6\n", file) >= 0 &&
         std::fclose(file) == 0);
  Session session(forward.build({{"loss", "cross_entropy"}, {"optimizer", "sgd"}}), device);
  Dataset data("data.csv", session), inputs("data.csv", session, "predict");
  EXPECT(data.samples() == 3 && data.batches_of(0) == 1 && data.batches_of(2) == 2);
  EXPECT(data.tensors().size() == 2 && std::string(data.tensors()[0].name) == "labels");
  EXPECT(inputs.tensors().size() == 1 && inputs.tensors()[0].shape[1] == 4);
  EXPECT(throws(ONNX_TRAIN_FILE, "no data at none.npz", [] { Dataset("none.npz"); }));

  const std::vector<float> bias = {1, 2, 3};
  save_safetensors("bias", {{"fc2.bias", {3}, bias}}, {{"made by", "a test"}});
  const Dataset saved = Dataset::safetensors("bias");
  EXPECT(saved.metadata().at("made by") == "a test" && saved.tensors().size() == 1);
  const onnx_train_tensor& read = saved.tensors()[0];
  EXPECT(std::string(read.name) == "fc2.bias" && read.shape[0] == 3 && static_cast<const float*>(read.data)[2] == 3);
  EXPECT(throws(ONNX_TRAIN_FILE, "data.csv is no safetensors file", [] { Dataset::safetensors("data.csv"); }));

  const double before = evaluate(session, data).at("loss");
  EXPECT(train(session, data, {{"epochs", "3"}, {"lr", "0.01"}}, &data) == ONNX_TRAIN_FINISHED);
  EXPECT(evaluate(session, data, {{"batch-size", "2"}}).at("loss") < before);
  const Outputs outputs = predict(session, inputs, {{"batch-size", "2"}});
  EXPECT(outputs.at("logits").shape[0] == 3);
  const std::vector<float> logits(outputs.data<float>("logits"), outputs.data<float>("logits") + 9);
  const std::vector<float> last = {9, 8, 7, 6};
  const float* const alone = session.run("predict", {{"x", {1, 4}, last}}).data<float>("logits");
  for (size_t i = 0; i < 3; ++i) EXPECT(std::abs(alone[i] - logits[6 + i]) < 1e-5f);

  Failing observer;
  try {
    train(session, data, {{"epochs", "3"}}, nullptr, &observer);
    EXPECT(false);
  } catch (const std::runtime_error& error) {
    EXPECT(std::string(error.what()) == "the second step");
  }
  Weights batches(session, ONNX_TRAIN_HOST_MEMORY);
  EXPECT(evaluate(session, batches).at("loss") > 0);
  EXPECT(throws(ONNX_TRAIN_USAGE, "no batches", [&] { predict(session, batches); }));
}

}  // namespace

// A language model whose next token is one more.
void test_texts(const std::string& path, const Options& device) {
  Session session(Model::load(path), device);
  const Options likely = {{"tokens", "3"}, {"temperature", "0"}};
  std::vector<int64_t> drawn;
  const auto keep = [&](size_t text, int64_t token) { return drawn.push_back(token), text == 0; };
  const std::vector<std::vector<int64_t>> texts = generate(session, {{0, 1}, {3}}, likely);
  EXPECT(texts == (std::vector<std::vector<int64_t>>{{2, 3, 4}, {4, 0, 1}}));
  EXPECT(generate(session, {{0, 1}, {3}}, likely, keep).size() == 2 && drawn == (std::vector<int64_t>{2, 4}));
  EXPECT(throws(ONNX_TRAIN_USAGE, "at least one token", [&] { generate(session, {{}}, likely); }));
  EXPECT(throws(ONNX_TRAIN_USAGE, "top-p", [&] { generate(session, {{0}}, {{"top-p", "2"}}); }));
  bool passed = false;
  try {
    generate(session, {{0}}, likely, [](size_t, int64_t) -> bool { throw std::string("mine"); });
  } catch (const std::string& mine) {
    passed = mine == "mine";
  }
  EXPECT(passed);
}

int main(int argc, char** argv) try {
  if (argc < 2) return std::fprintf(stderr, "usage: %s MODEL.onnx [DEVICE]\n", argv[0]), 2;
  EXPECT(std::string(onnx_train_version()) == ONNX_TRAIN_VERSION);
  const Options device = argc > 2 ? Options{{"device", argv[2]}} : Options{};
  const Model forward = Model::load(argv[1]);
  test_models(forward);
  test_roles(forward, device);
  test_passes(forward, device);
  test_session(forward, device);
  test_device_memory(forward, device);
  test_files(forward, device);
  test_resume(forward, device);
  if (device.empty()) test_null(forward, device);
  const std::string path = argv[1];
  test_texts(path.substr(0, path.rfind('/') + 1) + "next.onnx", device);
} catch (const std::exception& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
