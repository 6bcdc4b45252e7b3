//! A headless Chromium, driven by chromedriver over HTTP: the WebDriver protocol is JSON, and no more of it is needed.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Chromium without anything that would reach out of the machine.
const FLAGS: [&str; 9] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
];

/// What is wrong with the page, one line each. Arguments: how many pictures are to be seen, and whether it is a page.
const CHECK: &str = r"
const [pictures, page] = arguments, wrong = [];
if (page) {
  for (const link of document.querySelectorAll('a.word'))
    if (!document.getElementById(link.hash.slice(1))) wrong.push(`${link.textContent} leads nowhere`);
  for (const cell of document.querySelectorAll('table.main td, table.main tbody th')) {
    const box = cell.getBoundingClientRect(), frame = cell.closest('.scroll').getBoundingClientRect();
    if (!box.width || !box.height || box.left < frame.left - 1 || box.right > frame.right + 1)
      wrong.push(`${cell.textContent} is outside its table at ${innerWidth}`);
  }
  document.querySelectorAll('details').forEach(one => one.open = true);
  for (const box of document.querySelectorAll('.scroll'))
    if (box.scrollWidth > box.clientWidth + 1 && !box.previousElementSibling?.matches('.hint') )
      wrong.push(`${box.getAttribute('aria-label')} is cut without a hint`);
    else if (box.scrollWidth > box.clientWidth + 1 && !box.previousElementSibling.getClientRects().length)
      wrong.push(`the hint of ${box.getAttribute('aria-label')} is hidden`);
  const root = document.scrollingElement;
  if (root.scrollWidth > innerWidth) wrong.push(`the page is ${root.scrollWidth} wide, the window ${innerWidth}`);
}
const shown = [...document.querySelectorAll('svg')].filter(svg => svg.getClientRects().length);
if (shown.length !== pictures) wrong.push(`${shown.length} pictures instead of ${pictures}`);
for (const svg of shown) {
  const frame = svg.getBoundingClientRect(), name = svg.querySelector('title').textContent;
  if (!svg.querySelector('desc').textContent.trim()) wrong.push(`${name}: no description`);
  const marks = [...svg.querySelectorAll('.d')];
  if (!marks.length) wrong.push(`${name}: no marks`);
  for (const mark of marks) {
    const box = mark.getBBox(), style = getComputedStyle(mark);
    const flat = mark.tagName === 'polyline' ? !box.width && !box.height : !box.width || !box.height;
    if (flat || style.visibility !== 'visible' || style.display === 'none' || (style.fill === 'none' && style.stroke === 'none'))
      wrong.push(`${name}: a ${mark.tagName} cannot be seen`);
  }
  const texts = [...svg.querySelectorAll('text')].filter(text => getComputedStyle(text).visibility === 'visible').map(text => [text.textContent, text.getBoundingClientRect()]);
  for (const [words, box] of texts)
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
      wrong.push(`${name}: ${words} leaves the picture`);
  texts.forEach(([words, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 1 && down > 4) wrong.push(`${name}: ${words} lies on ${other}`);
  }));
}
return wrong;
";

/// Ends with the value: the browser first, then its driver.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    pid: Option<u64>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts one; without Chromium or its driver it says so and gives nothing.
    pub fn start(test: &str) -> Option<Browser> {
        let installed = |name: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
        };
        for name in ["chromium", "chromedriver"] {
            if !installed(name) {
                println!(
                    "skipped: {test}: no {name}; apt-get install --no-install-recommends chromium chromium-driver"
                );
                return None;
            }
        }
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let port = port(&mut driver);
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Browser { driver, port, session: String::new(), pid: None, _profile: profile };
        let mut flags: Vec<String> = FLAGS.map(str::to_owned).to_vec();
        flags.push(format!("--user-data-dir={}", browser._profile.path().display()));
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = browser.call("POST", "/session", &wanted);
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        browser.pid = session["capabilities"]["goog:processID"].as_u64();
        Some(browser)
    }

    /// One request; the value in the answer. Anything but success ends the test.
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = if method == "POST" { body.to_string() } else { String::new() };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.port,
            body.len()
        )
        .unwrap();
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line).unwrap() > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer).unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer["value"]["error"].is_null(), "{method} {path}: {answer}");
        answer["value"].clone()
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("/session/{}/{path}", self.session), body)
    }

    fn devtools(&self, cmd: &str, params: &Value) {
        self.command("goog/cdp/execute", &json!({"cmd": cmd, "params": params}));
    }

    /// Sets the width of the window and whether the reader likes it light or dark.
    pub fn emulate(&mut self, width: u32, scheme: &str) {
        let metrics = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", &features);
    }

    /// All that a reader sees of figures at this width: the cells of tables with the titles of their columns, the lists, and
    /// what can be pointed at in the pictures.
    pub fn figures(&mut self) -> Vec<String> {
        let script = "const seen = [];
            document.querySelectorAll('details').forEach(one => one.open = true);
            for (const cell of document.querySelectorAll('td, dd, tbody th, .facts li, .headline'))
              if (cell.getClientRects().length) seen.push((cell.dataset.th || '') + '|' + cell.textContent);
            for (const svg of document.querySelectorAll('svg'))
              if (svg.getClientRects().length) for (const tip of svg.querySelectorAll('.tip'))
                seen.push([...tip.querySelectorAll('.say')].map(one => one.textContent).join(' '));
            return seen.sort();";
        let seen = self.command("execute/sync", &json!({"script": script, "args": []}));
        seen.as_array().unwrap().iter().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// What a finger on the first mark of the first picture is told.
    pub fn told_on_touch(&mut self) -> String {
        let script =
            "const tip = [...document.querySelectorAll('svg .tip')].find(one => one.getClientRects().length);
            tip.focus();
            const say = tip.querySelector('.say');
            return getComputedStyle(say).visibility + ' ' + say.textContent;";
        let told = self.command("execute/sync", &json!({"script": script, "args": []}));
        told.as_str().unwrap_or_default().to_owned()
    }

    pub fn open(&mut self, file: &Path) {
        self.command("url", &json!({"url": format!("file://{}", file.display())}));
    }

    /// Looks at what is open; `scheme` is that of a page, and nothing for a picture alone.
    pub fn check(&mut self, what: &str, pictures: u32, scheme: Option<&str>) {
        let wrong =
            self.command("execute/sync", &json!({"script": CHECK, "args": [pictures, scheme.is_some()]}));
        let wrong: Vec<&str> = wrong.as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
        if let Some(scheme) = scheme {
            let script = "return getComputedStyle(document.body).backgroundColor";
            let ground = self.command("execute/sync", &json!({"script": script, "args": []}));
            let expected = if scheme == "dark" { "rgb(22, 24, 27)" } else { "rgb(255, 255, 255)" };
            assert_eq!(ground, expected, "{what}");
        }
        let log = self.command("se/log", &json!({"type": "browser"}));
        assert_eq!(log, json!([]), "{what}: the console is not empty");
    }
}

/// The port that the driver took.
fn port(driver: &mut Child) -> u16 {
    let lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        if let Some((_, port)) = line.split_once("started successfully on port ") {
            return port.trim_end_matches('.').parse().unwrap();
        }
    }
    panic!("chromedriver ended without a port");
}

impl Drop for Browser {
    fn drop(&mut self) {
        // While a test fails, the session may not answer any more: then by number.
        if !std::thread::panicking() && !self.session.is_empty() {
            self.call("DELETE", &format!("/session/{}", self.session), &Value::Null);
        } else if let Some(pid) = self.pid {
            let _ = Command::new("kill").arg(pid.to_string()).status();
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
