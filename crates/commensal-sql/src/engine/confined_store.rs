//! A read-only object store for the files below one folder; no name can refer to a file outside of it.
//!
//! `object_store` refuses `..` in names, but it follows symbolic links. This store accepts a file only if its canonical
//! path is below the canonical path of the folder.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// The files below a folder.
#[derive(Debug, Clone)]
pub struct Below {
    files: Arc<LocalFileSystem>,
    root: PathBuf,
}

impl Below {
    /// Creates a store of the files below `folder`.
    ///
    /// # Errors
    /// The folder does not exist.
    pub fn new(folder: &std::path::Path) -> Result<Below> {
        let generic = |source: std::io::Error| Error::Generic { store: "data folder", source: source.into() };
        let root = folder.canonicalize().map_err(generic)?;
        let files = Arc::new(LocalFileSystem::new_with_prefix(&root)?);
        Ok(Below { files, root })
    }

    /// The canonical path of the folder.
    #[must_use]
    pub fn root(&self) -> &std::path::Path {
        &self.root
    }

    /// Whether the canonical path of a name is below the folder. Also true for a name without a file, because opening a
    /// missing file fails later.
    fn inside(&self, name: &Path) -> bool {
        let Ok(path) = self.files.path_to_filesystem(name) else { return false };
        path.canonicalize().map_or(true, |place| place.starts_with(&self.root))
    }

    /// Whether a folder is a symbolic link. Such folders are not followed, because they may lead out of the data folder
    /// or form loops.
    fn is_link(&self, folder: &Path) -> bool {
        let path = self.files.path_to_filesystem(folder);
        path.is_ok_and(|path| path.symlink_metadata().is_ok_and(|found| found.is_symlink()))
    }

    fn check(&self, name: &Path) -> Result<()> {
        if self.inside(name) {
            return Ok(());
        }
        // The error is the same as for a missing file, so that it does not reveal the link's target.
        let source = "leads out of the data folder".into();
        Err(Error::NotFound { path: name.to_string(), source })
    }

    fn read_only<T>(&self, name: &Path) -> Result<T> {
        let source = "the data folder is read-only".into();
        Err(Error::PermissionDenied { path: name.to_string(), source })
    }
}

impl fmt::Display for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("data folder")
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for Below {
    async fn put_opts(&self, name: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        self.read_only(name)
    }

    async fn put_multipart_opts(
        &self,
        name: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.read_only(name)
    }

    async fn get_opts(&self, name: &Path, options: GetOptions) -> Result<GetResult> {
        self.check(name)?;
        self.files.get_opts(name, options).await
    }

    async fn get_ranges(&self, name: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.check(name)?;
        self.files.get_ranges(name, ranges).await
    }

    fn delete_stream(&self, names: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        names.map(move |name| name.and_then(|name| store.read_only(&name))).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let first = prefix.cloned().unwrap_or_default();
        // Lists folder by folder, because the inner store's recursive listing follows links.
        let walk =
            futures::stream::try_unfold((self.clone(), vec![first]), |(store, mut folders)| async move {
                let Some(folder) = folders.pop() else { return Ok::<_, Error>(None) };
                let found = store.list_with_delimiter(Some(&folder)).await?;
                folders.extend(found.common_prefixes);
                let files = futures::stream::iter(found.objects.into_iter().map(Ok));
                Ok(Some((files, (store, folders))))
            });
        walk.try_flatten().boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let offset = offset.clone();
        let after = move |found: &Result<ObjectMeta>| {
            futures::future::ready(found.as_ref().map_or(true, |meta| meta.location > offset))
        };
        self.list(prefix).filter(after).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut found = self.files.list_with_delimiter(prefix).await?;
        found.objects.retain(|meta| self.inside(&meta.location));
        found.common_prefixes.retain(|prefix| !self.is_link(prefix));
        Ok(found)
    }

    async fn copy_opts(&self, _: &Path, to: &Path, _: CopyOptions) -> Result<()> {
        self.read_only(to)
    }

    async fn rename_opts(&self, _: &Path, to: &Path, _: RenameOptions) -> Result<()> {
        self.read_only(to)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test makes files and links")]
mod tests {
    use super::*;
    use object_store::ObjectStoreExt;

    // promise 50
    #[tokio::test]
    async fn nothing_leads_out() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::fs::write(folder.path().join("secret.csv"), "a\n1\n").unwrap();
        std::fs::write(data.join("good.csv"), "a\n1\n").unwrap();
        std::os::unix::fs::symlink("../secret.csv", data.join("link.csv")).unwrap();
        std::os::unix::fs::symlink("..", data.join("up")).unwrap();
        std::os::unix::fs::symlink("good.csv", data.join("alias.csv")).unwrap();
        std::fs::create_dir_all(data.join("a/b")).unwrap();
        std::fs::write(data.join("a/b/deep.csv"), "a\n1\n").unwrap();
        std::os::unix::fs::symlink("../..", data.join("a/b/circle")).unwrap();
        let store = Below::new(&data).unwrap();
        let mut names: Vec<String> =
            store.list(None).map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap();
        names.sort();
        assert_eq!(names, ["a/b/deep.csv", "alias.csv", "good.csv"]);
        assert!(store.get(&Path::from("good.csv")).await.is_ok());
        for name in ["link.csv", "up/secret.csv", "../secret.csv", "%2e%2e/secret.csv"] {
            assert!(store.get(&Path::from(name)).await.is_err(), "{name}");
            let first = std::slice::from_ref(&(0..1));
            assert!(store.get_ranges(&Path::from(name), first).await.is_err(), "{name}");
        }
        assert!(Path::parse("../secret.csv").is_err());
        let listed = store.list_with_delimiter(None).await.unwrap();
        assert_eq!(listed.common_prefixes, [Path::from("a")]);
        assert!(store.put(&Path::from("new.csv"), "x".into()).await.is_err());
        assert!(store.delete(&Path::from("good.csv")).await.is_err());
    }
}
