// A browser lets no page that is opened as a file start a worker; the search of this site then runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = `<script>
        const worker = frameElement.worker
        self.postMessage = data => worker.dispatchEvent(new MessageEvent("message", {data}))
        self.importScripts = (...addresses) => addresses.reduce((before, src) => before.then(() =>
          new Promise((onload, onerror) =>
            document.head.append(Object.assign(document.createElement("script"), {src, onload, onerror})))),
          Promise.resolve())
      </script><script src="${address}"></script>`
      this.frame.worker = this
      this.frame.addEventListener("load", () => this.postMessage(...this.waiting.splice(0)))
      document.body.append(this.frame)
    }

    postMessage(...messages) {
      if (this.frame.contentDocument?.readyState !== "complete") this.waiting.push(...messages)
      else for (const data of messages) this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data}))
    }

    terminate() {
      this.frame.remove()
    }

    set onmessage(listener) {
      this.addEventListener("message", listener)
    }
  }
}
