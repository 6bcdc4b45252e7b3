import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.metrics2.lib.MutableCounterLong;

/** Hadoop's own cluster for tests: two name nodes, the first one active, and two data nodes. Does what it reads from its
 * standard input, one command a line, and answers each with one line that begins with "ok". */
public class MiniCluster {
    static MiniDFSCluster cluster;

    /** What the data nodes have read for readers, with checksums: four bytes for each 512. From the counters themselves,
     * because their JMX values are some seconds old. */
    static long bytesRead() throws Exception {
        long sum = 0;
        for (DataNode node : cluster.getDataNodes()) {
            Field counter = node.getMetrics().getClass().getDeclaredField("bytesRead");
            counter.setAccessible(true);
            sum += ((MutableCounterLong) counter.get(node.getMetrics())).value();
        }
        return sum;
    }

    /** Looks every 20 ms for so long; a line of pairs of nanoseconds and bytes. */
    static String watch(long milliseconds) throws Exception {
        List<String> seen = new ArrayList<>();
        long begun = System.nanoTime();
        for (long now = 0; now < milliseconds * 1_000_000; now = System.nanoTime() - begun) {
            seen.add(now + ":" + bytesRead());
            Thread.sleep(20);
        }
        return String.join(" ", seen);
    }

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new HdfsConfiguration();
        configuration.set("dfs.blocksize", "8m");
        configuration.set("dfs.namenode.fs-limits.min-block-size", "1m");
        cluster = new MiniDFSCluster.Builder(configuration, new File(arguments[0]))
            .nnTopology(MiniDFSNNTopology.simpleHATopology(2)).numDataNodes(2).build();
        cluster.transitionToActive(0);
        cluster.waitActive(0);
        FileSystem files = cluster.getFileSystem(0);
        System.out.println("ok " + cluster.getNameNodePort(0) + " " + cluster.getNameNodePort(1));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", 3);
            String answer = "";
            switch (words[0]) {
                case "put": files.copyFromLocalFile(new Path(words[1]), new Path(words[2])); break;
                case "mode": files.setPermission(new Path(words[2]), new FsPermission(words[1])); break;
                case "read": answer = Long.toString(bytesRead()); break;
                case "watch": answer = watch(Long.parseLong(words[1])); break;
                case "stop": cluster.stopDataNode(0); break;
                case "switch": cluster.transitionToStandby(0); cluster.transitionToActive(1); break;
                default: throw new IllegalArgumentException(line);
            }
            System.out.println("ok " + answer);
        }
        cluster.shutdown();
        System.exit(0);
    }
}
