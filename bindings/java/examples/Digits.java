import java.nio.ByteBuffer;
import java.nio.FloatBuffer;
import java.util.Map;
import onnxtrain.Dataset;
import onnxtrain.Model;
import onnxtrain.Next;
import onnxtrain.Observer;
import onnxtrain.Outputs;
import onnxtrain.Session;

/**
 * Trains on digits, stops in the middle, goes on to the bit where it stopped, exports, and predicts.
 * java -cp onnx-train.jar Digits.java MODEL.onnx TRAIN.npz TEST.npz FOLDER
 */
public final class Digits {
  public static void main(String[] arguments) {
    final String train = arguments[1];
    final String test = arguments[2];
    final String folder = arguments[3];

    try (Model forward = Model.load(arguments[0]);
        Model training = forward.build("loss", "cross_entropy", "optimizer", "adamw");
        Session whole = new Session(training);
        Session first = new Session(training);
        Session second = new Session(training)) {
      fit(whole, train, folder + "/whole", new Observer());
      // The same in two parts: after 70 steps the first one ends, and another session goes on from its files.
      fit(first, train, folder + "/parts", new Observer().onStep(s -> s.step == 70 ? Next.INTERRUPT : Next.CONTINUE));
      fit(second, train, folder + "/parts", new Observer().onNote(System.out::println), "resume", "true");
      for (String name : whole.states()) {
        final ByteBuffer expected = whole.buffer(name);
        if (!expected.equals(second.buffer(name))) throw new AssertionError("state '" + name + "' differs");
      }
      System.out.println(whole.states().length + " states are equal to the bit");

      try (Dataset data = Dataset.openFor(test, second, "evaluate")) {
        final Map<String, Double> metrics = second.evaluate(data);
        System.out.printf("accuracy %.3f%n", metrics.get("accuracy"));
      }
      try (Model trained = second.model(); Model inference = trained.export()) {
        inference.save(folder + "/digits.onnx");
      }
    }
    System.out.printf("accuracy %.3f of the exported model%n", accuracy(folder + "/digits.onnx", test));
  }

  private static void fit(Session session, String path, String folder, Observer observer, String... more) {
    final String[] options = {"epochs", "3", "batch-size", "32", "lr", "0.003", "seed", "1", "out", folder};
    final String[] all = java.util.Arrays.copyOf(options, options.length + more.length);
    System.arraycopy(more, 0, all, options.length, more.length);
    try (Dataset data = Dataset.open(path, session)) {
      System.out.println(session.fit(data, null, observer, all));
    }
  }

  private static double accuracy(String model, String path) {
    try (Model inference = Model.load(model);
        Session session = new Session(inference);
        Dataset data = Dataset.open(path, session);
        Dataset labelled = Dataset.open(path)) {
      long[] labels = null;
      for (onnxtrain.Tensor array : labelled.tensors()) {
        if (array.name().equals("labels")) labels = array.toLongs();
      }
      final Outputs outputs = session.predict(data);
      final FloatBuffer logits = outputs.get("logits").floats();  // in the session's memory, without a copy
      int right = 0;
      for (int i = 0; i < labels.length; ++i) {
        int best = 0;
        for (int c = 1; c < 10; ++c) {
          if (logits.get(10 * i + c) > logits.get(10 * i + best)) best = c;
        }
        if (best == labels[i]) ++right;
      }
      return (double) right / labels.length;
    }
  }
}
