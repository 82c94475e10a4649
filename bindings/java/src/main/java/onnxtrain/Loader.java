package onnxtrain;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Scanner;

/**
 * Loads libonnx_train_jni.so, which finds libonnx_train.so beside it. In this order: the folder of the property
 * onnxtrain.library.path; java.library.path, which on Android is the folder that jniLibs/arm64-v8a becomes;
 * natives/SYSTEM in the jar, whose files are written to a folder that is removed when the process ends.
 */
final class Loader {
  private static final String NAME = "onnx_train_jni";

  private Loader() {}

  static void load() {
    final String folder = System.getProperty("onnxtrain.library.path");
    if (folder != null) {
      System.load(new File(folder, System.mapLibraryName(NAME)).getAbsolutePath());
      return;
    }
    if (System.getProperty("java.vm.name", "").equals("Dalvik")) {
      System.loadLibrary(NAME);
      return;
    }
    final String system = system();
    try (InputStream list = Loader.class.getResourceAsStream("/natives/" + system + "/files.txt")) {
      if (list != null && !isOnPath()) {
        System.load(extract(system, list).resolve(System.mapLibraryName(NAME)).toString());
        return;
      }
    } catch (IOException error) {
      throw new UncheckedIOException("the natives of " + system + " cannot be written", error);
    }
    try {
      System.loadLibrary(NAME);
    } catch (UnsatisfiedLinkError error) {
      final UnsatisfiedLinkError explained = new UnsatisfiedLinkError("the jar has no natives of " + system
          + ", and neither the property onnxtrain.library.path nor java.library.path leads to "
          + System.mapLibraryName(NAME) + ": " + error.getMessage());
      explained.initCause(error);
      throw explained;
    }
  }

  /** "linux-x86_64" or "linux-aarch64". */
  static String system() {
    final String machine = System.getProperty("os.arch").toLowerCase(Locale.ROOT);
    final String name = System.getProperty("os.name").toLowerCase(Locale.ROOT);
    return (name.startsWith("linux") ? "linux" : name.replaceAll("\\s.*", "")) + "-"
        + (machine.equals("amd64") ? "x86_64" : machine);
  }

  private static boolean isOnPath() {
    for (String folder : System.getProperty("java.library.path", "").split(File.pathSeparator)) {
      if (!folder.isEmpty() && new File(folder, System.mapLibraryName(NAME)).isFile()) return true;
    }
    return false;
  }

  private static Path extract(String system, InputStream list) throws IOException {
    final Path folder = Files.createTempDirectory("onnxtrain-");
    final List<Path> made = new ArrayList<>();
    made.add(folder);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> remove(made)));
    try (Scanner names = new Scanner(list, "UTF-8")) {
      while (names.hasNext()) {
        final String name = names.next();
        try (InputStream file = Loader.class.getResourceAsStream("/natives/" + system + "/" + name)) {
          if (file == null) throw new IOException("the jar has no natives/" + system + "/" + name);
          Files.copy(file, folder.resolve(name));
        }
        made.add(folder.resolve(name));
      }
    }
    return folder;
  }

  private static void remove(List<Path> made) {
    Collections.reverse(made);
    for (Path path : made) {
      try {
        Files.deleteIfExists(path);
      } catch (IOException ignored) {
        // The system's own cleaning of temporary files is left.
      }
    }
  }
}
