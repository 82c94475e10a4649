// What is computed once for all processes of a user: images of kernels, choices between kernels. It is kept in a
// folder: $ONNX_TRAIN_CACHE, else $XDG_CACHE_HOME/onnx-train, else ~/.cache/onnx-train. Any thread may call.
#pragma once

#include <optional>
#include <string>

namespace onnx_train {

// The folder; nothing where the environment names none. It need not be there.
std::optional<std::string> cache_folder();

// What is kept: of which backend, a folder there ("cuda"); of which kind, the ending of its file ("choice"); and for
// what. The key says everything that the content depends on.
struct CacheEntry {
  std::string backend, kind, key;
};

// Returns the content that was kept. Nothing if there is none, or if its file is damaged.
std::optional<std::string> read_cached(const CacheEntry& entry);

// Keeps the content unless another process has kept one, and returns what is kept, so that processes which compute the
// same at the same time go on with one content. Nothing where the content cannot be kept: no folder, no permission, no
// room.
std::optional<std::string> keep_cached(const CacheEntry& entry, const std::string& content);

// Whether files can be kept for the backend, as far as this can be known before. Makes the folder.
bool has_cache(const std::string& backend);

// 32 hexadecimal digits.
std::string hash_of(const std::string& bytes);

}  // namespace onnx_train
