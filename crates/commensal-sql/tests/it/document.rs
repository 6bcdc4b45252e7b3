//! Document 002, "Workload Group best practice" of Apache Doris 2.1: every statement that it prints, as it prints it.

use crate::{World, parsed};
use commensal_core::limit::MEMORY_MAX;
use commensal_core::units::{Bytes, BytesPerS, MemoryAmount, Ppm};
use commensal_sql::catalog::Catalog;
use commensal_sql::property::MemoryLimit;
use commensal_sql::statement::{Assignment, Statement, Value, split};

/// The document's queries of a table and of S3, which are for the query engine.
const QUERIES: [&str; 8] = [
    "select MEMORY_USAGE_BYTES / 1024/ 1024 as wg_mem_used_mb from workload_group_resource_usage where workload_group_id=11201;",
    "select CPU_USAGE_PERCENT from workload_group_resource_usage where WORKLOAD_GROUP_ID=11201;",
    "select * from hits.hits;",
    "select LOCAL_SCAN_BYTES_PER_SECOND / 1024 / 1024 as mb_per_sec from workload_group_resource_usage where WORKLOAD_GROUP_ID=11201;",
    "select cast(REMOTE_SCAN_BYTES_PER_SECOND/1024/1024 as int) as read_mb from information_schema.workload_group_resource_usage;",
    "// 查看schema\nDESC FUNCTION s3 (\n    \"URI\" = \"https://bucketname/1kw.tsv\",\n    \"s3.access_key\"= \"ak\",\n    \
     \"s3.secret_key\" = \"sk\",\n    \"format\" = \"csv\",\n    \"use_path_style\"=\"true\"\n);",
    "SELECT * FROM s3(\n    \"URI\" = \"https://bucketname/1kw.tsv\",\n    \"s3.access_key\"= \"ak\",\n    \
     \"s3.secret_key\" = \"sk\",\n    \"format\" = \"csv\",\n    \"use_path_style\"=\"true\"\n);",
    "// 使用tvf查询s3的数据\nSELECT * FROM s3(\"URI\" = \"https://bucketname/1kw.tsv\");",
];

// promise 45
#[test]
fn every_statement_is_understood() {
    for text in QUERIES {
        let Statement::PassedOn(passed) = parsed(text) else { panic!("{text} was not handed on") };
        let lines = text.lines().filter(|line| !line.starts_with("//")).collect::<Vec<_>>().join("\n");
        assert_eq!(passed.text, lines.trim_end_matches(';'));
    }
    let block = "// 设置只scan数据，不返回结果\nset dry_run_query = true;\n\n// 使用tvf查询s3的数据\nSELECT * FROM s3(\"a\" = \"b\");\n";
    let parts = split(block);
    assert_eq!(parts, ["set dry_run_query = true", "SELECT * FROM s3(\"a\" = \"b\")"]);
    let value = Value::Text("true".to_owned());
    let set = Assignment { global: false, name: "dry_run_query".to_owned(), value };
    assert_eq!(parsed(parts[0]), Statement::Set(vec![set]));
}

// promise 45
#[test]
fn the_documents_limits_are_what_it_says() {
    let mut world = World::new();
    world.ok("create workload group g2");
    world.ok("alter workload group g2 properties('memory_limit'='0.5%');
         alter workload group g2 properties('enable_memory_overcommit'='false');");
    let g2 = |catalog: &Catalog| catalog.group("g2").unwrap().clone();
    let group = g2(&world.catalog);
    let limit = group.properties.max_memory.unwrap().amount;
    assert_eq!(limit, MemoryLimit::OfBase(Ppm(5_000)));
    // 375 GB of the machine, of which 90 % are the server's, of which 0.5 % are the group's: 1.69 GB.
    let spec = group.properties.spec(group.name.clone(), world.catalog.memory_base());
    let bytes = spec.limits.get(MEMORY_MAX).unwrap().on(Bytes(375_000_000_000));
    assert_eq!(bytes, Bytes(1_687_500_000));
    assert_eq!(spec.limits.get(MEMORY_MAX), Some(MemoryAmount::OfMachine(Ppm(4_500))));

    world.ok("alter workload group g2 properties('cpu_hard_limit'='10%'); ADMIN SET FRONTEND CONFIG (\"enable_cpu_hard_limit\" = \"true\");");
    let group = g2(&world.catalog);
    assert_eq!(world.catalog.cpu_hard_limit(&group).unwrap().to_string(), "10 % of the machine");

    world.ok(
        "// 限制当前Group的读吞吐为每秒100M\nalter workload group g2 properties('read_bytes_per_second'='104857600');
         alter workload group normal properties('remote_read_bytes_per_second'='104857600');",
    );
    assert_eq!(g2(&world.catalog).properties.read_bytes_per_second, Some(BytesPerS(100 << 20)));
    assert_eq!(
        world.catalog.group("normal").unwrap().properties.remote_read_bytes_per_second,
        Some(BytesPerS(100 << 20))
    );
    assert_eq!(g2(&world.catalog).version, 4);
}
