// Federated averaging: three sessions train on data of their own, and after each round all go on from the mean of their
// weights.
//   federated MODEL.onnx
#include <onnx_train/onnx_train.hpp>

#include <algorithm>
#include <cstdio>
#include <random>

using namespace onnx_train;

namespace {

struct Client {
  Client(const Model& model, unsigned seed) : session(model, {{"threads", "1"}}), x(256 * 4) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& value : x) value = uniform(random);
    for (size_t i = 0; i < x.size(); i += 4) labels.push_back(std::max_element(&x[i], &x[i] + 3) - &x[i]);
  }
  Arrays data() const { return Arrays({{"x", {256, 4}, x}, {"labels", {256}, labels}}); }
  float loss() { return session.run("evaluate", {{"x", {256, 4}, x}, {"labels", {256}, labels}}).scalar("loss"); }

  Session session;
  std::vector<float> x;
  std::vector<int64_t> labels;
};

// All clients receive the mean of each weight. Slots of the optimizer stay their own.
void average(std::vector<Client>* clients) {
  for (const std::string& name : clients->front().session.states()) {
    if (name.compare(0, 2, "fc") != 0) continue;
    std::vector<float> mean = clients->front().session.get(name);
    for (size_t c = 1; c < clients->size(); ++c) {
      const std::vector<float> theirs = (*clients)[c].session.get(name);
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += theirs[i];
    }
    for (float& value : mean) value /= static_cast<float>(clients->size());
    for (Client& client : *clients) client.session.set(name, mean);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return std::fprintf(stderr, "usage: %s MODEL.onnx\n", argv[0]), 2;
  const Model model = Model::load(argv[1]).build({{"loss", "cross_entropy"}, {"optimizer", "sgd"}});
  std::vector<Client> clients;
  for (const unsigned seed : {1u, 2u, 3u}) clients.emplace_back(model, seed);
  const float before = clients[0].loss();
  for (int round = 0; round < 10; ++round) {
    for (Client& client : clients) {
      Arrays data = client.data();
      train(client.session, data, {{"epochs", "2"}, {"batch-size", "16"}, {"lr", "0.2"}});
    }
    average(&clients);
  }
  const float after = clients[0].loss();
  std::printf("loss %.3f before, %.3f after ten rounds\n", before, after);
  if (clients[0].session.get("fc1.weight") != clients[2].session.get("fc1.weight")) return 1;
  return after < before / 2 ? 0 : 1;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
