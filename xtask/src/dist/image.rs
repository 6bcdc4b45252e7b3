//! The tarball of a static program with its files, and an image whose only layer is that tarball: an OCI layout in a plain
//! tar (opencontainers/image-spec, image-layout.md). No daemon takes part.

use super::{FILES, Stage, date, digest, done};
use anyhow::Context;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Makes both, and returns their paths.
pub(super) fn make(stage: &Stage<'_>, out: &Path) -> anyhow::Result<[PathBuf; 2]> {
    let (name, arch) = (stage.package.name(), std::env::consts::ARCH);
    let tarball = out.join(format!("{name}-{}.{arch}.tar.gz", stage.version));
    let package = stage.folder.join("files.ipk");
    stage.pack(&FILES, &package)?;
    std::fs::write(
        &tarball,
        output(Command::new("tar").args(["-xzOf"]).arg(&package).arg("./data.tar.gz"))?,
    )?;
    let image = out.join(format!("{name}-{}.{arch}.oci.tar", stage.version));
    layout(stage, &tarball, &image)?;
    Ok([tarball, image])
}

/// Writes the image.
fn layout(stage: &Stage<'_>, layer: &Path, image: &Path) -> anyhow::Result<()> {
    let folder = stage.folder.join("layout");
    let blobs = folder.join("blobs/sha256");
    std::fs::create_dir_all(&blobs)?;
    // Stores a blob, and returns its descriptor.
    let blob = |kind: &str, bytes: &[u8]| -> anyhow::Result<Value> {
        let digest = digest(bytes);
        std::fs::write(blobs.join(&digest), bytes)?;
        let kind = format!("application/vnd.oci.image.{kind}");
        Ok(json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len() }))
    };
    let created = date(stage.root, "format-local:%Y-%m-%dT%H:%M:%SZ")?;
    let files = output(Command::new("gzip").arg("-dc").arg(layer))?;
    let architecture = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": { "Entrypoint": [format!("/usr/bin/{}", stage.package.name())] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", digest(&files))] },
        "history": [{ "created": created, "created_by": "cargo xtask dist" }],
    });
    let config = blob("config.v1+json", config.to_string().as_bytes())?;
    let layer = blob("layer.v1.tar+gzip", &std::fs::read(layer)?)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer],
    });
    let mut manifest = blob("manifest.v1+json", manifest.to_string().as_bytes())?;
    let name = format!("{}:{}", stage.package.name(), stage.version);
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": stage.version,
        "io.containerd.image.name": format!("docker.io/library/{name}"),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    std::fs::write(folder.join("index.json"), index.to_string())?;
    std::fs::write(folder.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX", "--mtime"]);
    tar.arg(&created).arg("-cf").arg(image).arg("-C").arg(&folder).arg(".");
    done(&mut tar, "tar")
}

/// What a command prints.
fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let name = command.get_program().display().to_string();
    let output = command.stderr(Stdio::inherit()).output().with_context(|| name.clone())?;
    if !output.status.success() {
        anyhow::bail!("{name} failed");
    }
    Ok(output.stdout)
}
